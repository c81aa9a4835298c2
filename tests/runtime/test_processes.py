"""Work in processes and threads: the order of chunks, errors, time limits, and that no process is left."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
import time

import pytest

from think_as_locals.runtime.processes import cores, in_processes, run_with_timeout


def test_chunks_keep_their_order_and_no_process_remains() -> None:
    squares = [(f"root of {n}", float(n * n)) for n in range(30)]
    assert list(in_processes(math.sqrt, squares)) == [(f"root of {n}", float(n)) for n in range(30)]
    assert not multiprocessing.active_children()


def test_zero_or_one_chunk_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", lambda _: pytest.fail("a process was started"))
    assert list(in_processes(math.sqrt, [(None, 4.0)])) == [(None, 2.0)]
    assert not list(in_processes(math.sqrt, list[tuple[None, float]]()))


def test_worker_error_is_raised_and_early_exit_leaves_no_process() -> None:
    with pytest.raises(ValueError, match=r"math domain error|expected a nonnegative input"):
        list(in_processes(math.sqrt, [(None, 1.0), (None, 4.0), (None, -1.0)]))
    found = in_processes(math.sqrt, ((n, float(n)) for n in range(1000)))
    assert [next(found)[0] for _ in range(3)] == [0, 1, 2]
    del found
    assert not multiprocessing.active_children()


def test_cores_uses_cpu_affinity_or_falls_back_to_cpu_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr("os.sched_getaffinity")  # as on macOS
    assert cores() == os.cpu_count()


def test_time_limit_and_errors_of_the_work() -> None:
    assert run_with_timeout(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(5, lambda: 1 / 0)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"took longer than 0\.1 s"):
        run_with_timeout(0.1, lambda: time.sleep(30))
    assert time.monotonic() - began < 5


def test_output_in_ascii_escapes_what_it_cannot_write() -> None:
    program = "from think_as_locals.runtime.output import set_output; set_output(None); print('† é')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert done.stdout == b"\\u2020 \\xe9\n"

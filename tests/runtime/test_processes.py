"""Cores, and time limits that leave no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from think_as_locals.runtime.processes import cores, run_with_timeout


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

"""Work in processes and threads: the order of chunks, errors, time limits, and that nothing is left."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import threading
import time

import pytest

from think_as_locals.runtime.processes import cores, in_processes, run_with_timeout, without_collection


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


def test_garbage_collection_is_off_until_the_outermost_block_ends() -> None:
    with without_collection():
        with without_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_endless_loop_is_abandoned_and_terminates(capfd: pytest.CaptureFixture[str]) -> None:
    stopped, began = threading.Event(), time.monotonic()

    def spin() -> None:
        try:
            while True:
                pass
        finally:
            stopped.set()

    with pytest.raises(TimeoutError, match=r"took longer than 0\.2 s"):
        run_with_timeout(0.2, spin)
    assert 0.2 <= time.monotonic() - began < 3
    assert stopped.wait(5)
    assert capfd.readouterr().err == ""


def test_time_limit_holds_outside_the_main_thread() -> None:
    caught: list[BaseException] = []

    def other() -> None:
        try:
            run_with_timeout(0.1, lambda: time.sleep(30))
        except TimeoutError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(5)
    assert len(caught) == 1

"""Work on many chunks of data in a process for each core."""

from __future__ import annotations

import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

Kept = TypeVar("Kept")
Sent = TypeVar("Sent")
Made = TypeVar("Made")

_AHEAD = 3  # maximum chunks in flight for each process


def in_processes(work: Callable[[Sent], Made], chunks: Iterable[tuple[Kept, Sent]]) -> Iterator[tuple[Kept, Made]]:
    """Yield the first part of each chunk, and what `work` makes of the second part, in their order.

    The first chunk is done here: processes take a second to start.
    """
    rest = iter(chunks)
    for kept, sent in islice(rest, 1):
        yield kept, work(sent)
    processes = len(os.sched_getaffinity(0))
    in_flight: deque[tuple[Kept, Future[Made]]] = deque()
    # Spawned: a process with threads, such as that of a progress bar, is not safe to fork.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_start)
    try:
        for kept, sent in rest:
            in_flight.append((kept, pool.submit(work, sent)))
            if len(in_flight) > _AHEAD * processes:
                kept, future = in_flight.popleft()
                yield kept, future.result()
        for kept, future in in_flight:
            yield kept, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the first one ends the others
    gc.disable()  # what is sent has no reference cycles

"""The signals that stop a process, and work in processes and threads.

SIGINT (Ctrl-C), SIGTERM and SIGUSR1 have the same effect everywhere: the first one stops the program so that it can
continue later, the next one ends the process at once.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import get_context
from threading import Thread, current_thread, main_thread
from typing import NoReturn, ParamSpec, TypeVar

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def on_signals(receive: Callable[[int], None], numbers: Iterable[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """Call a function for each of these signals, except those that this process ignores (nohup, a background job)."""
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda received, _: receive(received)) for number in handled}
    # launch/node.sh blocks SIGUSR1 in the launcher, and so in its children.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_next(numbers: Iterable[signal.Signals] = STOP_SIGNALS) -> None:
    """Let the next of these signals end the process, even if it hangs outside of Python."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def interrupt(_: int) -> NoReturn:
    """Raise KeyboardInterrupt, as Ctrl-C does."""
    end_at_next()
    raise KeyboardInterrupt


Context = TypeVar("Context")
Work = TypeVar("Work")
Result = TypeVar("Result")
P = ParamSpec("P")

_MAX_IN_FLIGHT = 3  # maximum chunks in flight for each process


def cores() -> int:
    """Return the number of CPU cores that this process may use; where the system does not say, of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(
    work: Callable[[Work], Result], chunks: Iterable[tuple[Context, Work]]
) -> Iterator[tuple[Context, Result]]:
    """Yield the first part of each chunk, and what `work` makes of the second part, in their order.

    The first chunk is done here: processes take a second to start.
    """
    rest = iter(chunks)
    for context, task in islice(rest, 1):
        yield context, work(task)
    processes = cores()
    in_flight: deque[tuple[Context, Future[Result]]] = deque()
    # Spawned: a process with threads, such as that of a progress bar, is not safe to fork. Ctrl-C reaches all of them,
    # and the first one ends the others.
    ignored = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=signal.signal, initargs=ignored)
    try:
        for context, task in rest:
            in_flight.append((context, pool.submit(work, task)))
            if len(in_flight) > _MAX_IN_FLIGHT * processes:
                context, future = in_flight.popleft()
                yield context, future.result()
        for context, future in in_flight:
            yield context, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_with_timeout(seconds: float, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Return what `work` returns within a time limit; if it hangs, it does not keep the process from ending."""
    outcome = in_background(partial(work, *args, **kwargs))
    if not wait([outcome], seconds).done:
        raise TimeoutError(f"took longer than {seconds:g} s")
    return outcome.result()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in a block that takes longer; only in the main thread, which alone receives signals."""
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Start work in a thread of its own, which does not keep the process from ending."""
    outcome: Future[Result] = Future()

    def attempt() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=attempt, daemon=True).start()
    return outcome

"""The signals that stop a process, and work in processes and threads.

SIGINT (Ctrl-C), SIGTERM and SIGUSR1 have the same effect everywhere: the first one stops the program so that it can
continue later, the next one ends the process at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
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


Result = TypeVar("Result")
P = ParamSpec("P")


def cores() -> int:
    """Return the number of CPU cores that this process may use; where the system does not say, of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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

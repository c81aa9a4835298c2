"""Signals that stop a program: SIGINT (Ctrl-C), SIGTERM and SIGUSR1 have the same effect everywhere.

The first one stops the program so that it can continue later; the next one ends the process at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def on_signals(receive: Callable[[int], None], numbers: Iterable[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """Call a function for each of these signals, except those that this process ignores (nohup, a background job)."""
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda received, _: receive(received)) for number in heeded}
    # launch/node.sh blocks SIGUSR1 in the launcher, and so in its children.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)
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

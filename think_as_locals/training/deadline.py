"""A time limit for code that may never return."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns, or raises, unless it takes longer than `seconds`.

    It runs in a thread of its own, which works from any thread, unlike an alarm signal, and leaves the caller free even
    where C code blocks (a socket, a sleep). Past the limit that thread is told to exit, which pure Python does at its
    next instruction; one that is blocked in C does so when it comes back, and does not keep the process from ending.
    Only C code that holds the interpreter's lock is beyond reach.

    Raises:
        TimeoutError: it took longer.
        Exception: whatever `work` raises.

    Example:
        >>> within(1.0, lambda: 6 * 7)
        42
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            returned.append(work())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        # SystemExit: no `except Exception` of the work's own swallows it, and the thread ends without a traceback.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise TimeoutError(f"took longer than {seconds:g} s")
    if raised:
        if isinstance(raised[0], Exception):
            raise raised[0]
        raise RuntimeError(f"tried to end the process: {raised[0]!r}") from raised[0]
    return returned[0]

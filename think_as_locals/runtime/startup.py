"""What saves a process time: no garbage collection while loading, no imports that are not used, memory that is kept."""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_KEPT = 2**30


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection for imports and data, which takes a quarter of the time of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # otherwise extension modules report leaks at exit


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Hide packages that are not imported yet from libraries that import them only because they are installed."""
    absent = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def keep_freed_memory() -> None:
    """Have this process keep up to a gigabyte that it frees, on Linux.

    A step's tensors on CPU would else be new memory, which the system hands out page by page: a sixth of the time.
    """
    with suppress(AttributeError, OSError):  # other C libraries have no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_MMAP_THRESHOLD, _KEPT)

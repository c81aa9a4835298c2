"""Start faster: no garbage collection while loading, and no imports of optional packages that are not used."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Keep the garbage collector out of imports and data: searching them over and over is a quarter of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # else extension modules complain of leaks at the end


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Hide packages, where not imported yet, from libraries that import them merely because they are installed."""
    absent = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]

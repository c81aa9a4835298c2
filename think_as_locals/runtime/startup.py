"""Start faster: no garbage collection while loading, and no imports of optional packages that are not used."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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

"""The signals that stop a process, the memory that it keeps, and work in processes and threads.

SIGINT (Ctrl-C), SIGTERM and SIGUSR1 have the same effect everywhere: the first one stops the program so that it can
continue later, the next one ends the process at once.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from itertools import islice
from multiprocessing import get_context
from threading import Thread
from types import ModuleType
from typing import Any, NoReturn, ParamSpec, TypeVar

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


Kept = TypeVar("Kept")
Sent = TypeVar("Sent")
Made = TypeVar("Made")
P = ParamSpec("P")

_MAX_IN_FLIGHT = 3  # maximum chunks in flight for each process


def cores() -> int:
    """Return the number of CPU cores that this process may use; where the system does not say, of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(work: Callable[[Sent], Made], chunks: Iterable[tuple[Kept, Sent]]) -> Iterator[tuple[Kept, Made]]:
    """Yield the first part of each chunk, and what `work` makes of the second part, in their order.

    The first chunk is done here: processes take a second to start.
    """
    rest = iter(chunks)
    for kept, sent in islice(rest, 1):
        yield kept, work(sent)
    processes = cores()
    in_flight: deque[tuple[Kept, Future[Made]]] = deque()
    # Spawned: a process with threads, such as that of a progress bar, is not safe to fork.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_init_worker)
    try:
        for kept, sent in rest:
            in_flight.append((kept, pool.submit(work, sent)))
            if len(in_flight) > _MAX_IN_FLIGHT * processes:
                kept, future = in_flight.popleft()
                yield kept, future.result()
        for kept, future in in_flight:
            yield kept, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _init_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the first one ends the others
    gc.disable()  # what is sent has no reference cycles


def run_with_timeout(seconds: float, work: Callable[P, Made], *args: P.args, **kwargs: P.kwargs) -> Made:
    """Return what `work` returns, or raise what it raises, within a time limit.

    It runs in a thread of its own, which is made to exit after the limit, at its next Python instruction. C code that
    holds the interpreter's lock cannot be interrupted.
    """
    outcome: Future[Made] = Future()
    thread = _thread(outcome, partial(work, *args, **kwargs))
    thread.join(seconds)
    if thread.is_alive():
        # SystemExit passes through any `except Exception` in the work, and ends the thread without a traceback.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise TimeoutError(f"took longer than {seconds:g} s")
    error = outcome.exception()
    if error is not None and not isinstance(error, Exception):
        raise RuntimeError(f"tried to end the process: {error!r}") from error
    return outcome.result()


def in_background(work: Callable[[], Made]) -> Future[Made]:
    """Start work in a thread of its own, which does not keep the process from ending."""
    outcome: Future[Made] = Future()
    _thread(outcome, work)
    return outcome


def _thread(outcome: Future[Made], work: Callable[[], Made]) -> Thread:
    def attempt() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    return thread


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_KEPT = 2**30


def release_freed_memory() -> None:
    """Return freed memory to the system, on Linux: also what lies between blocks that are still in use."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


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
def without_collection() -> Iterator[None]:
    """Disable garbage collection for many small objects without reference cycles: it would search them repeatedly."""
    enabled = gc.isenabled()  # not within another such block
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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


@contextmanager
def imported_on_use(*packages: str) -> Iterator[None]:
    """Have libraries that import installed packages at once, but use them rarely, import them on their first use.

    `importlib.util.LazyLoader` imports a package as soon as anyone looks at `sys.modules`, as `inspect` does.
    """
    specs = [spec for name in packages if name not in sys.modules and (spec := find_spec(name))]
    modules = {spec.name: module_from_spec(spec) for spec in specs}
    for name, module in modules.items():
        module.__path__ = []  # no part of it is imported meanwhile, which would be part of another module
        module.__dict__["__getattr__"] = partial(_attribute, name, module)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def _attribute(package: str, module: ModuleType, name: str) -> Any:
    if sys.modules.get(package) is module:
        if name == "run":  # transformers asks whether there is a `wandb.run`
            return None
        raise AttributeError(f"module {package!r} is imported on its first use, and not to read {name!r}")
    return getattr(import_module(package), name)


def keep_freed_memory() -> None:
    """Have this process keep up to a gigabyte that it frees, on Linux.

    Otherwise a step's tensors on CPU are new memory, which takes a sixth of its time to be mapped page by page.
    """
    with suppress(AttributeError, OSError):  # other C libraries have no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_MMAP_THRESHOLD, _KEPT)

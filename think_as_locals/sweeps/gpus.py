"""GPUs of their own for jobs that run side by side on one machine, or all would begin with its first."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
_POLL_S = 0.2


def visible() -> list[str]:
    """The GPUs that a process started here may use, as CUDA_VISIBLE_DEVICES names them; none where there is none."""
    if (named := os.environ.get(VARIABLE)) is not None:
        # CUDA takes those before the first that it does not know, and -1 is the usual way to say none.
        return [] if named.strip() in ("", "-1", "NoDevFiles") else [name.strip() for name in named.split(",")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    done = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)  # noqa: S603
    count = sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0
    return [str(index) for index in range(count)]


def shares(gpus: Sequence[str], each: int) -> list[str]:
    """GPUs in shares of one size, which no two jobs have at a time; what is left over is nobody's.

    Example:
        >>> shares(["0", "1", "2", "3", "4"], 2)
        ['0,1', '2,3']
    """
    return [",".join(gpus[first : first + each]) for first in range(0, len(gpus) - each + 1, each)]


@contextmanager
def held(shares: Sequence[str], folder: Path, stop: Callable[[], bool]) -> Iterator[dict[str, str]]:
    """The environment of a job that has a share to itself, as soon as one is free; the lock goes with the process.

    Args:
        shares: As `shares` gives them; without any, a job has what its parent has.
        folder: Where the locks are, the same for all jobs.
        stop: Whether to wait no longer; nothing is held then.
    """
    while shares and not stop():
        for number, share in enumerate(shares):
            with (folder / f".gpus-{number}").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield {VARIABLE: share}
                return
        time.sleep(_POLL_S)
    yield {}

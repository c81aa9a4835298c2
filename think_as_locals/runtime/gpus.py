"""The GPUs of this machine and their driver: how many, how large, and why torch sees none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from think_as_locals.types import PreflightError

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"

_DRIVERS = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    # Importing torch takes seconds, and is not needed without a driver.
    if not find_spec("torch") or not has_driver():
        return False
    import torch

    return bool(torch.cuda.is_available())


def has_driver() -> bool:
    """Return whether there is a GPU driver; containers may have it without its programs on PATH."""
    return any(map(shutil.which, ("nvidia-smi", "rocm-smi"))) or any(path.exists() for path in _DRIVERS)


def num_gpus() -> int:
    """Return how many GPUs torch sees."""
    if not has_gpu():
        return 0
    import torch

    return int(torch.cuda.device_count())


def gpu_bytes() -> int | None:
    """Return the memory of the smallest GPU that torch sees, or `None` if it sees none."""
    return min((gpu.total_memory for gpu in _seen_by_torch()), default=None)


def _seen_by_torch() -> list[Any]:
    if not has_gpu():
        return []
    import torch

    return list(map(torch.cuda.get_device_properties, range(torch.cuda.device_count())))


def gpus() -> list[str]:
    """Return name and memory of each GPU that torch sees."""
    return [f"{gpu.name}, {gpu.total_memory / 2**20:.0f} MiB" for gpu in _seen_by_torch()]


def visible_gpus() -> list[str]:
    """Return the GPUs that a process started here may use, in the form of CUDA_VISIBLE_DEVICES."""
    if (named := os.environ.get(GPUS_VARIABLE)) is None:
        # Asking torch would start CUDA, for which the variable could then not be changed.
        if (program := shutil.which("nvidia-smi")) is None:
            return []
        words = [program, "--query-gpu=index", "--format=csv,noheader"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()  # noqa: S603
    # CUDA ignores all names from the first unknown one, and -1 is the usual value for none.
    return [] if named.strip() in ("", "-1", "NoDevFiles") else [name.strip() for name in named.split(",")]


def take_own_gpus() -> None:
    """Limit this process of a launch to its share of the machine's GPUs; call this before anything uses one.

    Of four processes on eight GPUs, the first sees GPUs 0 and 1, for `tensor_parallel_size` or `device_map`.
    """
    local, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    visible = visible_gpus()
    if not visible or processes == 1:
        return
    if (each := len(visible) // processes) == 0:
        raise PreflightError(
            f"{processes} processes were started here, for {len(visible)} GPUs: each holds a model of its own; set "
            "--num_processes (or --nproc_per_node) to at most the number of GPUs"
        )
    os.environ[GPUS_VARIABLE] = ",".join(visible[local * each : (local + 1) * each])


def gpu_fault() -> str | None:
    """Return why torch sees no GPU; `None` if it sees one."""
    if has_gpu():
        return None
    if not has_driver() or not find_spec("torch"):
        return "torch sees no CUDA device"
    if GPUS_VARIABLE in os.environ and not visible_gpus():
        return f"torch sees no CUDA device: {GPUS_VARIABLE}={os.environ[GPUS_VARIABLE]!r} hides them all"
    import torch

    reason = "it does not say why"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # any exception: of each device as well
        reason = " ".join(str(error).split()).rstrip(".")
    return f"torch sees no CUDA device, though there is a driver: {reason}"

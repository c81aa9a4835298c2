"""The GPUs of this machine and their driver: how many, how large, and why torch sees none of them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

_VISIBLE = "CUDA_VISIBLE_DEVICES"

_DRIVERS = tuple(map(Path, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))


def num_gpus() -> int:
    """Return how many GPUs torch sees, and can use."""
    # Importing torch takes seconds, and is not needed without a driver.
    if not find_spec("torch") or not has_driver():
        return 0
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def has_driver() -> bool:
    """Return whether there is a GPU driver; containers may have it without its programs on PATH."""
    return any(map(shutil.which, ("nvidia-smi", "rocm-smi"))) or any(path.exists() for path in _DRIVERS)


def gpus() -> list[tuple[str, int]]:
    """Return name and bytes of memory of each GPU that torch sees."""
    if not (count := num_gpus()):
        return []
    import torch

    return [(gpu.name, gpu.total_memory) for gpu in map(torch.cuda.get_device_properties, range(count))]


def gpu_fault() -> str | None:
    """Return why torch sees no GPU; `None` if it sees one."""
    if num_gpus():
        return None
    if not has_driver() or not find_spec("torch"):
        return "torch sees no CUDA device"
    if (visible := os.environ.get(_VISIBLE, "0")).strip() in ("", "-1", "NoDevFiles"):
        return f"torch sees no CUDA device: {_VISIBLE}={visible!r} hides them all"
    import torch

    reason = "it does not say why"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # any exception: of each device as well
        reason = " ".join(str(error).split()).rstrip(".")
    return f"torch sees no CUDA device, though there is a driver: {reason}"

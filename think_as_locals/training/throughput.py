"""The operations of a training's tokens, and how many a device does in a second."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from typing import Any


def operations_per_token(parameters: int, trained: int) -> int:
    """Return the operations of a token's forward and backward pass through a dense model, without its attention.

    They are 6 for each trained parameter (arXiv 2001.08361), and 4 for a frozen one, which has no gradient of its own.
    Gradient checkpointing, which runs the forward pass again, takes 2 more for each that are not counted here.

    Example:
        >>> operations_per_token(7_000_000_000, trained=40_000_000)
        28080000000
    """
    return 4 * parameters + 2 * trained


def count_parameters(parameters: Iterable[Any]) -> tuple[int, int]:
    """Return how many numbers parameters have over all ranks, and how many of them are trained."""
    counts = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in parameters]  # DeepSpeed's are empty
    return sum(count for count, _ in counts), sum(count for count, trained in counts if trained)


@cache
def product_rate(dtype: str) -> float:
    """Return the operations a second of a large matrix product on this GPU or CPU."""
    import torch

    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 512)
    matrix = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
    matrix @ matrix  # the first one loads kernels
    done, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < 0.3:
        float((matrix @ matrix)[0, 0])  # waits for the GPU
        done += 1
    return done * 2.0 * size**3 / spent

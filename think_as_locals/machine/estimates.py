"""Estimate a training's memory, and its tokens a second by the rate of a matrix product here."""

from __future__ import annotations

import time

from think_as_locals.config.launch import Launch
from think_as_locals.config.model_schema import TrainingConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.machine.memory import Counts, count, describe
from think_as_locals.types import ThinkAsLocalsError

_WORTHWHILE = 1.5  # times as fast


def operations(config: TrainingConfig, counts: Counts) -> int:
    """Return the operations of one token's forward and backward pass: 6 for each trained parameter (arXiv 2001.08361).

    A frozen one has no gradient of its own (4); gradient checkpointing runs the forward pass again (2 more).
    """
    section = config.scpo if isinstance(config, ScpoConfig) else config.grpo
    return (4 + 2 * section.gradient_checkpointing) * counts.parameters + 2 * counts.trained


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


def estimates(config: TrainingConfig, launch: Launch) -> list[tuple[str, str]]:
    """Return lines about a training's memory and speed, each behind its name, or why they are not known."""
    try:
        counts = count(config)
    except ThinkAsLocalsError as error:
        return [("memory", f"not known: {error}")]
    each, dtype = operations(config, counts), config.model.dtype
    rate = product_rate(dtype)
    speed = (
        f"about {rate / each:,.0f} tokens/s forward and backward on each device: {each / 1e9:.2g} G operations a "
        f"token, {rate / 1e9:,.0f} G a second in a {dtype} matrix product"
    )
    if config.model.path and dtype == "float32" and (half := product_rate("bfloat16")) > _WORTHWHILE * rate:
        speed += f"; model.dtype=bfloat16 is {half / rate:.1f} times as fast here"
    return [("memory", describe(config, launch, counts)), ("speed", speed)]

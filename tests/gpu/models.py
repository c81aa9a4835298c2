"""Models that checks make on the spot: random weights in the shape of a 7B model, or of a toy."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from gpu.checks import Scale
from transformers import AutoModelForCausalLM, Qwen2Config

HEADS = {False: (28, 4, 128), True: (4, 2, 16)}
"""Query heads, key heads and their width, of Qwen2.5-7B and of a toy."""


def policy_config(scale: Scale, **settings: Any) -> Qwen2Config:
    """Return the configuration of Qwen2.5-7B, or of a toy."""
    heads, key_heads, _ = HEADS[scale.toy]
    shape = {
        "hidden_size": scale.pick(64, 3584),
        "intermediate_size": scale.pick(128, 18944),
        "num_hidden_layers": scale.pick(2, 28),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": scale.pick(512, 152_064),
        "max_position_embeddings": 32_768,
    }
    return Qwen2Config(**{**shape, **settings})


def random_model(scale: Scale, config: Any, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return a model of random weights, made where it stays."""
    torch.manual_seed(0)
    with torch.device(scale.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")


def synchronize(scale: Scale) -> None:
    """Wait for the GPU."""
    if not scale.toy:
        torch.cuda.synchronize()


def seconds(scale: Scale, work: Callable[[], Any], repetitions: int = 5) -> float:
    """Return the median duration of some work, after a run that does not count."""
    times = []
    for _ in range(1 + scale.pick(1, repetitions)):
        synchronize(scale)
        began = perf_counter()
        work()
        synchronize(scale)
        times.append(perf_counter() - began)
    return median(times[1:])


def peak_bytes(scale: Scale, work: Callable[[], Any]) -> float:
    """Return how many bytes some work adds at its peak on the GPU; 0 on a CPU, where torch does not count."""
    if scale.toy:
        work()
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return float(torch.cuda.max_memory_allocated() - before)

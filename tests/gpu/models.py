"""Models that checks make on the spot: random weights in the shape of a 7B model or of a toy, and a trained judge."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from socket import socket
from statistics import median
from time import perf_counter
from typing import Any

import torch
from filelock import FileLock
from gpu.checks import PYTHON, Scale
from transformers import AutoModelForCausalLM, Qwen2Config

HEADS = {False: (28, 4, 128), True: (4, 2, 32)}
"""Query heads, key heads and their width, of Qwen2.5-7B and of a toy."""


def policy_config(scale: Scale, **settings: Any) -> Qwen2Config:
    """Return the configuration of Qwen2.5-7B, or of a toy."""
    heads, key_heads, _ = HEADS[scale.toy]
    shape = {
        "hidden_size": scale.pick(128, 3584),
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


JUDGE = {
    True: [
        "model.scratch.hidden_size=64",
        "model.scratch.num_attention_heads=2",
        "sft.max_steps=40",
        "sft.warmup_steps=5",
    ],
    False: [  # about 90 s
        *("model.scratch.hidden_size=512", "model.scratch.intermediate_size=1536", "sft.max_steps=1500"),
        *("model.scratch.num_hidden_layers=8", "model.scratch.num_attention_heads=8", "sft.learning_rate=0.001"),
    ],
}
QUICK = [  # what follows the cold start, as short as can be
    *("grpo.max_steps=1", "grpo.per_device_train_batch_size=16", "grpo.max_completion_length=16"),
    *("eval.max_items=4", "eval.bootstrap_samples=200"),
]
POSITIONS = 8192
"""How long a sequence the judge takes: its positions are rotations, of which none is learnt."""


def run_program(words: list[str], timeout: float) -> None:
    """Run a Python program; RuntimeError where it fails, with its output in this process's."""
    done = subprocess.run([PYTHON, *words], capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        print(done.stdout, done.stderr)
        raise RuntimeError(f"status {done.returncode} of {' '.join(words)}")


def trained_judge(scale: Scale) -> Path:
    """Return the folder of a judge whose cold start has taught it the format: it is sure of most tokens."""
    model = scale.folder / "judge" / "cold_start" / "model"
    with FileLock(scale.folder / "judge.lock"):
        if not (model / "positions").is_file():
            words = [*JUDGE[scale.toy], *QUICK, f"run.dir={scale.folder}", "run.name=judge", "run.resume=auto"]
            run_program(["-m", "think_as_locals", "run", "recipes/quickstart.yaml", *words], 200)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": POSITIONS}))
            (model / "positions").touch()
    return model


def free_port() -> str:
    """Return a port of this machine that nothing listens on: checks may run beside one another."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


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

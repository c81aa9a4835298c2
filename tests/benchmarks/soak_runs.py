"""Helpers of `make soak` that start runs, wait for them and inspect them.

Every run is forked from one process that has imported everything, so that hundreds of them take minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}

from think_as_locals import evaluate as benchmark  # noqa: F401  the imports are what is shared
from think_as_locals import run as runs
from think_as_locals import train as pipeline  # noqa: F401  the imports are what is shared
from think_as_locals.types import RunStoppedError

RECIPE = [
    "data.groups=[idiom_heavy_rain,gift_taboo]",
    "data.sets_per_group=6",
    "grpo.per_device_train_batch_size=8",
    "grpo.num_generations=4",
    "grpo.max_completion_length=16",
    "grpo.warmup_steps=0",
    "grpo.entropy_coef=0.1",  # so that every step moves the policy, whatever the rewards of so poor a judge
    "grpo.save_steps=1",
    "eval.max_items=4",
    "eval.bootstrap_samples=10",
    "run.resume=auto",
]
"""What every training run of a soak changes of it."""

COLD_START = [
    *("model.scratch.num_hidden_layers=1", "model.scratch.num_attention_heads=2"),
    *("model.scratch.num_key_value_heads=1", "model.scratch.intermediate_size=64"),
    *("sft.max_steps=4", "sft.warmup_steps=0", "sft.save_steps=1", "sft.logging_steps=1"),
]
STOPPED = 75
LIMIT_S = 180


def start(
    folder: Path,
    name: str,
    words: list[str],
    environment: dict[str, str] | None = None,
    log: str | None = None,
    first: Callable[[], None] = lambda: None,
) -> int:
    """One process of a run; its id.

    Args:
        folder: Where runs and logs go.
        name: The run's.
        words: What it changes of the recipe.
        environment: What a launcher would tell this process.
        log: What its log is called, if not like the run.
        first: What it does before.
    """
    if child := os.fork():
        return child
    os.setpgid(0, 0)
    os.environ |= environment or {}
    output = os.open(folder / f"{log or name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        first()
        runs.start("recipes/quickstart.yaml", [*RECIPE, *words, f"run.dir={folder}", f"run.name={name}"])
        status = 0
    except RunStoppedError:
        status = STOPPED
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(status)


def wait(process: int, seconds: float, until: Callable[[], bool] = lambda: False) -> int | None:
    """The status of a process; None where it still runs after so long, or when something else is so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def weights(stage: Path) -> str | None:
    """What the finished judge weighs, or None."""
    file = stage / "model" / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def logged(run: Path) -> list[dict[str, Any]]:
    """Every logged step of both stages."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def expect(good: bool, folder: Path, log: str) -> None:
    """End where the undisturbed run itself fails."""
    if not good:
        path = folder / f"{log}.log"
        raise SystemExit(f"{log} did not end well:\n{path.read_text() if path.is_file() else ''}")

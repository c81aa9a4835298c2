"""A tiny judge and its trainer, for tests of what happens around a training step."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.data import load
from think_as_locals.judging import Component, Evidence, render
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.checkpoints import CheckpointedTrainer, Checkpoints
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.types import Item, Judgement, ThinkAsLocalsError

TINY = [
    *("data.groups=[idiom_heavy_rain,gift_taboo]", "data.sets_per_group=4"),
    *("model.scratch.hidden_size=32", "model.scratch.intermediate_size=32", "model.scratch.num_hidden_layers=1"),
    *("model.scratch.num_attention_heads=2", "model.scratch.num_key_value_heads=1"),
    *("grpo.max_steps=2", "grpo.per_device_train_batch_size=4", "grpo.max_completion_length=6"),
    *("grpo.num_generations=4", "run.name=tiny"),
]


@cache
def settings(*overrides: str) -> tuple[RunConfig, tuple[Item, ...]]:
    """The configuration of a small run, and its items: tests of resuming make one trainer of the same after another."""
    config = load_recipe("recipes/quickstart.yaml", [*TINY, *overrides])
    return config, load(config.data, config.seed).train[:16]


def tiny_trainer(folder: Path, *overrides: str, **components: Component) -> JudgeTrainer:
    """A trainer with other functions for some of the reward components."""
    config, items = settings(*overrides)
    assert config.model.scratch is not None
    if PartialState().is_main_process and not (folder / "model").is_dir():
        texts = [message["content"] for item in items for message in render(item, config.prompt.template)]
        make_judge(folder / "model", texts, config.model.scratch, config.seed)
    PartialState().wait_for_everyone()
    checkpoints = Checkpoints(folder / "checkpoints", config.grpo.save_total_limit)
    trainer = JudgeTrainer(config, str(folder / "model"), items, RunFolder(folder), checkpoints)
    trainer.rewards.components |= components
    return trainer


def chance(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """A reward that depends on nothing but the text: it varies for any judge, so that every step moves the policy."""
    return random.Random(judgement.completion).random()


def figures(trainer: CheckpointedTrainer) -> list[dict[str, object]]:
    """What was logged, but for durations."""
    timed = {"update/mfu", "update/tokens_per_s", "step_time"}
    logs = [log for log in json.loads(json.dumps(trainer.state.log_history)) if "train_loss" not in log]
    return [{name: value for name, value in log.items() if name not in timed} for log in logs]


def ends_with(work: Callable[[], Any]) -> str:
    """The message of the error of ours that this ends with, or nothing."""
    try:
        work()
    except ThinkAsLocalsError as error:
        return str(error)
    return ""


class Code:
    """What an attacker puts into a pickle: loaded as Python's own, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._marker,)


def poison_loss(trainer: JudgeTrainer) -> None:
    """From now on the training pass, not the sampling, gives NaN."""
    trainer.model.model.norm.register_forward_hook(
        lambda module, given, output: output * float("nan") if torch.is_grad_enabled() else output
    )


def raising(times: int) -> Component:
    """A user's own reward that raises so many times first."""
    left = [times]

    def own(*_: object) -> float:
        left[0] -= 1
        return 0.0 if left[0] < 0 else 1 / 0

    return own


def hanging(*_: object) -> float:
    """Work for a second, which is too long, without letting go of Python."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pass
    return 0.0

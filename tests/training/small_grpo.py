"""A tiny judge and its trainer, for tests of what happens around a training step.

torchrun --nproc_per_node 2 small_grpo.py FOLDER      a fault on rank 1 alone: what each rank makes of it
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.schema import RunConfig
from think_as_locals.data import load
from think_as_locals.judging import COMPONENTS, Component, Evidence, render, write
from think_as_locals.reward_models.scratch import make_judge
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.checkpoints import CheckpointedTrainer, Checkpoints
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.types import Criterion, Item, Judgement, Rubric, ThinkAsLocalsError

TINY = [
    "data.groups=[idiom_heavy_rain,gift_taboo]",
    "data.sets_per_group=4",
    "model.scratch.hidden_size=32",
    "model.scratch.intermediate_size=32",
    "model.scratch.num_hidden_layers=1",
    "model.scratch.num_attention_heads=2",
    "model.scratch.num_key_value_heads=1",
    "grpo.max_steps=2",
    "grpo.per_device_train_batch_size=4",
    "grpo.max_completion_length=6",
    "grpo.num_generations=4",
    "run.name=tiny",
]


@cache
def settings(*overrides: str) -> tuple[RunConfig, tuple[Item, ...]]:
    """The configuration of a small run, and its items: tests of resuming make one trainer of the same after another."""
    config = load_recipe("recipes/quickstart.yaml", [*TINY, *overrides])
    return config, load(config.data, config.seed).train[:16]


def tiny_trainer(folder: Path, *overrides: str, components: Mapping[str, Component] = COMPONENTS) -> JudgeTrainer:
    config, items = settings(*overrides)
    assert config.model.scratch is not None
    if PartialState().is_main_process and not (folder / "model").is_dir():
        texts = [message["content"] for item in items for message in render(item, config.prompt.template)]
        make_judge(folder / "model", texts, config.model.scratch, config.seed)
    PartialState().wait_for_everyone()
    checkpoints = Checkpoints(folder / "checkpoints", config.grpo.save_total_limit)
    return JudgeTrainer(config, str(folder / "model"), items, RunFolder(folder), checkpoints, components)


def chance(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    """A reward that depends on nothing but the text: it varies for any judge, so that every step moves the policy."""
    return random.Random(judgement.completion).random()


def figures(trainer: CheckpointedTrainer) -> list[dict[str, object]]:
    """What was logged, but for durations."""
    timed = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"}
    logs = json.loads(json.dumps(trainer.state.log_history))
    return [
        {name: value for name, value in log.items() if name not in timed} for log in logs if "train_loss" not in log
    ]


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


def structure_that_raises(times: int) -> dict[str, Component]:
    left = [times]

    def structure(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
        if left[0] > 0:
            left[0] -= 1
            raise ZeroDivisionError("rank 1 alone")
        return COMPONENTS["structure"](judgement, presented, evidence)

    return {**COMPONENTS, "structure": structure}


def structure_that_hangs(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
    while True:
        pass


def main(folder: Path) -> None:
    PartialState(cpu=True)
    rank = PartialState().process_index
    limits = ["reward.fault_window=20", "reward.max_fault_share=0.1", "reward.timeout_s=0.3"]
    hangs: dict[str, Component] = {**COMPONENTS, "structure": structure_that_hangs}
    nan: dict[str, Component] = {**COMPONENTS, "structure": lambda *_: float("nan")}
    found: dict[str, Any] = {}
    for case, components in {
        "few": structure_that_raises(2),
        "many": structure_that_raises(3),
        "hangs": hangs,
        "nan": nan,
        "loss": COMPONENTS,
    }.items():
        trainer = tiny_trainer(folder, *limits, components=components if rank == 1 else COMPONENTS)
        if case == "loss" and rank == 1:
            poison_loss(trainer)
        message = ends_with(trainer.train)
        faults = [log["reward_faults"] for log in trainer.state.log_history if "reward_faults" in log]
        found[case] = message or faults
    found["pairs"] = pairs(folder, rank)
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def pairs(folder: Path, rank: int) -> list[Any]:
    """A group of four that lies on two ranks: the pairs are (right, right) and (wrong, right)."""
    trainer = tiny_trainer(folder, "reward=j1", "grpo.per_device_train_batch_size=2")
    end = trainer.processing_class.eos_token_id
    rubric = Rubric(tuple(Criterion(weight, f"Custom {weight}", "Done.") for weight in (50, 30, 20)))
    example = trainer.train_dataset[rank]
    best = example["presented"].best
    verdicts = [best, best if rank == 1 else (best + 1) % 4]
    texts = [write(rubric, "Weighed.", verdict) for verdict in verdicts]
    completions = [[*ids, end] for ids in trainer.processing_class(texts, add_special_tokens=False)["input_ids"]]
    logged: dict[str, float] = {}
    trainer.rewards.score(completions, [example] * 2, 0, logged.__setitem__, trainer._gain_scorer.score)
    values = {component.__name__: component() for component in trainer.rewards.functions()}
    return [values, logged["consistent_accuracy"]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

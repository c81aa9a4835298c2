"""What happens beside the steps of a trainer: CARB, the run's own records, checkpoints in their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOTrainer

from think_as_locals.schema import RunConfig
from think_as_locals.training.rewards import Rewards

Evaluate = Callable[[int], dict[str, float]]
"""Measures the policy at a step, all ranks together; returns metrics to log."""


class MetricsWriter(TrainerCallback):
    """Appends what a trainer logs to `metrics.jsonl`, a JSON object a line."""

    def __init__(self, path: Path, stage: str) -> None:
        self._path = path
        self._stage = stage

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write one line."""
        if state.is_world_process_zero and logs:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"stage": self._stage, "step": state.global_step, **logs}) + "\n")


class WandbConfig(TrainerCallback):
    """Shows W&B the run's whole configuration, beside TRL's arguments, which transformers sends."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add it to the run that transformers has opened."""
        if "wandb" in (args.report_to or ()) and state.is_world_process_zero:
            import wandb

            wandb.config.update({"think_as_locals": self._config.model_dump()})


class CompletionsWriter(TrainerCallback):
    """Writes the scored completions of this process to `completions/step-N.parquet`, where it is the main one."""

    def __init__(self, folder: Path, rewards: Rewards) -> None:
        self._folder = folder
        self._rewards = rewards

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write what came since the last log."""
        rows = self._rewards.take_rows()
        if state.is_world_process_zero and rows:
            self._folder.mkdir(parents=True, exist_ok=True)
            table = pyarrow.Table.from_pylist(rows)
            pyarrow.parquet.write_table(table, self._folder / f"step-{state.global_step:06d}.parquet")


class CarbCallback(TrainerCallback):
    """Measures CARB before the first step, every so many, and at the last, with the trainer's own engine."""

    def __init__(self, trainer: GRPOTrainer, evaluate: Evaluate, every_steps: int) -> None:
        self._trainer = trainer
        self._evaluate = evaluate
        self._every = every_steps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure what training starts from, now that the weights are where they will be."""
        if state.global_step == 0:
            self._evaluate(0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure; the metrics join what the trainer logs for this step."""
        if state.global_step % self._every == 0 or state.global_step == state.max_steps:
            for name, value in self._evaluate(state.global_step).items():
                self._trainer._metrics["train"][name].append(value)


class CheckpointPlace(TrainerCallback):
    """Renames transformers' `checkpoint-N` to `step-N` once every rank has written: a name is a whole checkpoint."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self._trainer = trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Wait for all ranks, then rename."""
        self._trainer.accelerator.wait_for_everyone()
        written = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and written.is_dir():
            written.rename(written.with_name(f"step-{state.global_step}"))


def last_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the highest step, if there is one."""
    steps = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return max(steps, key=lambda path: int(path.name.removeprefix("step-")), default=None)

"""Checkpoints that hold what TRL and transformers leave out, so that a resumed run equals an uninterrupted one.

They save weights, optimizer, scheduler, random number generators and the step. A run that stops between two samplings
also needs the rollouts in use and the position among them; one past its first epoch, its place in the order of items.
TRL alone is off by 2.8e-3 after such a stop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Trainer, TrainerCallback

from think_as_locals.runtime.files import write_text
from think_as_locals.training.checkpoints import Checkpoints

# With several processes and no GPU, transformers loads the optimizer to "cpu:0", a device that torch does not know.
torch.serialization.register_package(
    9, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
)

Values = dict[str, Any]
"""What JSON can hold, NaN included."""


class CheckpointedTrainer(Trainer):
    """A transformers trainer whose checkpoints are verified and hold each rank's own state.

    The last step has none: its result is saved as the model.
    """

    def __init__(self, *, checkpoints: Checkpoints, **settings: Any) -> None:
        super().__init__(**settings)
        self.checkpoints = checkpoints
        self.resumed_from: Path | None = None
        self.add_callback(_Restore(self))

    def train_from(self, checkpoint: Path | None) -> None:
        """Train from a committed checkpoint, or from the start."""
        self.resumed_from = checkpoint
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def rank_state(self) -> tuple[Values, dict[str, Tensor]]:
        """Return what only this rank knows."""
        losses = {"loss": float(self._tr_loss), "total_loss": self._total_loss_scalar}
        return {**losses, "last_logged": self._globalstep_last_logged}, {}

    def load_rank_state(self, values: Values, tensors: dict[str, Tensor]) -> None:
        """Restore it."""
        self._tr_loss += values["loss"]
        self._total_loss_scalar += values["total_loss"]
        self._globalstep_last_logged = values["last_logged"]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            self.checkpoints.commit(self.state.global_step, lambda: self._write_checkpoint(model, trial))

    def _write_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:
            if self.accelerator.distributed_type not in (DistributedType.DEEPSPEED, DistributedType.FSDP):
                raise
            # Their saves hold collectives: this rank can only end, and the launcher then ends those that wait for it.
            print(
                f"tal: a checkpoint could not be written: {type(error).__name__}: {error}", file=sys.stderr, flush=True
            )
            os._exit(2)
        folder = self.checkpoints.folder / f"checkpoint-{self.state.global_step}"
        values, tensors = self.rank_state()
        save_file(tensors, folder / f"rank-{self.args.process_index}.safetensors")
        write_text(folder / f"rank-{self.args.process_index}.json", json.dumps(values))


class _Restore(TrainerCallback):
    """Restores a rank's state after transformers has loaded its own part and before the first step."""

    def __init__(self, trainer: CheckpointedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = self._trainer.resumed_from
        if folder is not None:
            stem = folder / f"rank-{args.process_index}"
            values = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
            tensors = load_file(stem.with_suffix(".safetensors"))
            self._trainer.load_rank_state(values, {name: value.to(args.device) for name, value in tensors.items()})

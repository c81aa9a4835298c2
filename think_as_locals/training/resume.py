"""What TRL and transformers leave out of a checkpoint, so that a resumed run equals one that was never interrupted.

They save weights, optimizer, scheduler, random number generators and the step. A run that stops between two samplings
also needs the rollouts in use and where among them it is; one past its first epoch, its place in the order of items
(TRL's sampler would begin with the order of the first epoch again). TRL alone is off by 2.8e-3 after such a stop.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl.trainer.utils import RepeatSampler

from think_as_locals.files import write_text
from think_as_locals.training.checkpoints import Checkpoints
from think_as_locals.training.shared_prefix import SharedPrefixTrainer

# Of several processes without a GPU, transformers loads the optimizer to "cpu:0", a place that torch does not know.
torch.serialization.register_package(
    9, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
)

Values = dict[str, Any]
"""What JSON can hold, NaN included."""


class Stateful(Protocol):
    """Something whose state on this rank belongs into a checkpoint."""

    def state(self) -> Values: ...

    def load_state(self, values: Values) -> None: ...


class CheckpointedTrainer(Trainer):
    """A transformers trainer whose checkpoints are sealed and hold each rank's own state.

    The last step has none: what comes of it is saved by itself.

    Args:
        checkpoints: Where they go.
        settings: The trainer's.
    """

    def __init__(self, *, checkpoints: Checkpoints, **settings: Any) -> None:
        super().__init__(**settings)
        self.checkpoints = checkpoints
        self.resumed_from: Path | None = None
        self.add_callback(_Restore(self))

    def train_from(self, checkpoint: Path | None) -> None:
        """Train from a sealed checkpoint on, or from the start."""
        self.resumed_from = checkpoint
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def rank_state(self) -> tuple[Values, dict[str, Tensor]]:
        """What this rank alone knows."""
        losses = {"loss": float(self._tr_loss), "total_loss": self._total_loss_scalar}
        return {**losses, "last_logged": self._globalstep_last_logged}, {}

    def load_rank_state(self, values: Values, tensors: dict[str, Tensor]) -> None:
        """Take it up again."""
        self._tr_loss += values["loss"]
        self._total_loss_scalar += values["total_loss"]
        self._globalstep_last_logged = values["last_logged"]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        def write() -> None:
            with _alone_in_collectives(self.accelerator.distributed_type):
                super(CheckpointedTrainer, self)._save_checkpoint(model, trial)
            folder = self.checkpoints.folder / f"checkpoint-{self.state.global_step}"
            values, tensors = self.rank_state()
            save_file(tensors, folder / f"rank-{self.args.process_index}.safetensors")
            write_text(folder / f"rank-{self.args.process_index}.json", json.dumps(values))

        if self.state.global_step < self.state.max_steps:
            self.checkpoints.seal(self.state.global_step, write)


@contextmanager
def _alone_in_collectives(kind: DistributedType) -> Iterator[None]:
    """Where a save holds collectives, a rank that fails in it can only end: the launcher then ends those that wait."""
    try:
        yield
    except Exception as error:
        if kind not in (DistributedType.DEEPSPEED, DistributedType.FSDP):
            raise
        print(f"tal: a checkpoint could not be written: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(2)


class _Restore(TrainerCallback):
    """Gives a rank its state back, when transformers has loaded its own part and before the first step."""

    def __init__(self, trainer: CheckpointedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Read this rank's files."""
        folder = self._trainer.resumed_from
        if folder is not None:
            stem = folder / f"rank-{args.process_index}"
            values = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
            tensors = load_file(stem.with_suffix(".safetensors"))
            self._trainer.load_rank_state(values, {name: value.to(args.device) for name, value in tensors.items()})


class ResumableTrainer(CheckpointedTrainer, SharedPrefixTrainer):
    """A GRPO trainer that goes on exactly where it stopped.

    Args:
        stateful: What else belongs into a checkpoint, by name.
        settings: GRPOTrainer's.

    Attributes:
        order: What gives the order of the items, once the data loader is made.
    """

    order: RepeatSampler

    def __init__(self, *, stateful: Mapping[str, Stateful], **settings: Any) -> None:
        super().__init__(**settings)
        self._stateful = stateful

    def rank_state(self) -> tuple[Values, dict[str, Tensor]]:
        """The place in the window of rollouts, those still to be used, and metrics that were not logged yet."""
        values, tensors = super().rank_state()
        window = self.args.steps_per_generation * self.num_iterations
        batches = (self._buffered_inputs or []) if self._step % window else []
        values |= {
            "micro_step": self._step,
            "metrics": self._metrics["train"],
            "rollouts": [{k: v for k, v in batch.items() if not isinstance(v, Tensor)} for batch in batches],
            **{name: part.state() for name, part in self._stateful.items()},
        }
        for number, batch in enumerate(batches):
            # Micro-batches may be views of one tensor, which safetensors does not store.
            tensors |= {f"{number}/{k}": v.clone().contiguous() for k, v in batch.items() if isinstance(v, Tensor)}
        return values, tensors

    def load_rank_state(self, values: Values, tensors: dict[str, Tensor]) -> None:
        """The same again, and the order of the items of this epoch."""
        super().load_rank_state(values, tensors)
        self._step = values["micro_step"]
        for name, numbers in values["metrics"].items():
            self._metrics["train"][name] = numbers
        batches: list[dict[str, Any]] = values["rollouts"]
        for name, tensor in tensors.items():
            number, _, key = name.partition("/")
            batches[int(number)][key] = tensor
        self._buffered_inputs = batches or None
        for name, part in self._stateful.items():
            part.load_state(values[name])
        if self.shuffle_dataset:
            for _ in range(int(self.state.epoch or 0)):
                torch.randperm(self.order.num_samples, generator=self.order.generator)

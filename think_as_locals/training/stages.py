"""What the stages of any training run share: they resume, stop when signalled, and save a whole model or none."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather
from peft import PeftModel
from rich.console import Console
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.integrations import deepspeed

from think_as_locals.config.schema import ModelSection
from think_as_locals.runtime.files import flush
from think_as_locals.runtime.ranks import shards
from think_as_locals.runtime.run_folder import RunFolder, rewind
from think_as_locals.training.checkpoints import step_of, write_together
from think_as_locals.training.resume import CheckpointedTrainer
from think_as_locals.types import RunStoppedError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignals(TrainerCallback):
    """Turns the first SIGTERM or SIGUSR1 of any rank into a checkpoint and a stop; a second one ends the process.

    All ranks stop together at the end of the step. A signal before a stage is handled at the end of its first step.

    Example:
        with StopSignals() as signals:
            trainer.add_callback(signals)
            trainer.train()
        signals.stopped  # whether training ended early, alike on all ranks
    """

    def __init__(self) -> None:
        self.stopped = False
        self._received = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._handlers = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: Any) -> None:
        self._received = True
        for each in SIGNALS:  # the next one ends the process, even one that hangs outside of Python
            signal.signal(each, signal.SIG_DFL)

    def asked(self) -> bool:
        """Return whether any rank has a signal; all call this together."""
        here = torch.tensor([int(self._received)], device=PartialState().device)
        return bool(gather(here).any())

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and stop where a rank has a signal. The last step stops anyway."""
        if self.asked() and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop where a signal came while CARB was measured: the checkpoint of that step is saved."""
        if self.asked() and state.global_step < state.max_steps:
            self.stopped = control.should_training_stop = True


def train_stage(
    run: RunFolder, trainer: CheckpointedTrainer, stage: str, signals: StopSignals, console: Console
) -> None:
    """Train a stage to its end, from its last checkpoint where it has one."""
    checkpoint = trainer.checkpoints.latest()
    step = step_of(checkpoint) if checkpoint else 0
    if PartialState().is_main_process:
        rewind(run, stage, step)
    if checkpoint:
        console.print(f"{stage} continues from step {step}")
    trainer.train_from(checkpoint)
    if signals.stopped:
        stop_if_asked(run.name, signals, f"step {trainer.state.global_step} of {stage}")


def stop_if_asked(run: str, signals: StopSignals, place: str) -> None:
    """Raise RunStoppedError where a run was asked to stop; all ranks call this together."""
    if signals.asked():
        raise RunStoppedError(
            f"{run} was asked to stop and has saved after {place}: continue it with run.name={run} run.resume=auto"
        )


def save_model_atomically(write: Callable[[str], None], finish: Callable[[Path], None], folder: Path) -> None:
    """Save a model whole or not at all: where the folder exists, its stage is done."""
    state, unfinished = PartialState(), folder.with_name(f".{folder.name}")
    if state.is_main_process:
        rmtree(unfinished, ignore_errors=True)
    state.wait_for_everyone()
    together = partial(write_together, str(folder), "free the disk, then go on with run.resume=auto")
    together(lambda: write(str(unfinished)))
    together(lambda: _name(finish, unfinished, folder) if state.is_main_process else None)


def _name(finish: Callable[[Path], None], unfinished: Path, folder: Path) -> None:
    finish(unfinished)
    for path in (*unfinished.rglob("*"), unfinished):
        flush(path)
    unfinished.rename(folder)
    flush(folder.parent)


def save_model(
    trainer: Trainer, base: str, settings: ModelSection, adapter: Path | None, folder: str, kind: Any
) -> None:
    """Write a trained model as plain safetensors, however its weights were sharded; all ranks call this together.

    LoRA's adapter goes to `adapter`, and merged into the base model to `folder`; `None` where all weights were trained.
    `kind` is the `AutoModelFor...` that it is.
    """
    if adapter is None:
        if not shards():
            trainer.model.to(getattr(torch, settings.dtype))  # trained in float32, perhaps
        trainer.save_model(folder)
        return
    trainer.save_model(str(adapter))
    if not trainer.accelerator.is_main_process:
        return
    with unsharded():  # this rank loads the base alone
        weights = kind.from_pretrained(base, revision=settings.revision, dtype=settings.dtype)
        # The adapter's file has all that was trained: no rank need hold the policy's weights whole.
        PeftModel.from_pretrained(weights, str(adapter)).merge_and_unload().save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)


@contextmanager
def unsharded() -> Iterator[None]:
    """Have models load whole, even under ZeRO-3, where loading waits for all ranks: transformers reads this."""
    held = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = held

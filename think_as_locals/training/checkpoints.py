"""Checkpoints, which are complete or absent, and the stages of a run, which stop at and continue from them.

    checkpoints/checkpoint-6/             being written; never loaded
    checkpoints/step-6/manifest.json      every file's size; written last, before the folder gets its name

All ranks write into one shared folder and decide together, so that none waits for one that has failed. Besides what
TRL saves, a run that stops between two samplings needs its current rollouts and the position among them, and after its
first epoch its place in the order of items: with TRL alone, results differ by 2.8e-3 after such a stop.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, gather, gather_object, is_peft_model
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedConfig,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.integrations import deepspeed
from transformers.trainer import TRAINING_ARGS_NAME

from think_as_locals.config.schema import ModelSection
from think_as_locals.engines.transformers_engine import require_embeddings
from think_as_locals.runtime.files import check_writable, explain, file_fault, flush, write_json, write_text
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.runtime.output import print_error
from think_as_locals.runtime.processes import STOP_SIGNALS, end_at_next, on_signals
from think_as_locals.runtime.ranks import uses_deepspeed
from think_as_locals.runtime.run_folder import RunFolder, StageFolder, rewind
from think_as_locals.training.faults import StepGuard
from think_as_locals.training.logging import MetricsWriter, ShardsWriter
from think_as_locals.types import ConfigError, RunStoppedError, TrainingError

_MANIFEST = "manifest.json"
_UNFINISHED = "checkpoint-"  # transformers' name
_NAME = "step-"
_REPLACED = ".step-"
_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_FORWARDED_S = 1.0  # within which a launcher forwards to its workers what they got already

_logger = logging.getLogger(__name__)

# With several processes and no GPU, transformers loads the optimizer to "cpu:0", a device that torch does not know.
torch.serialization.register_package(
    9, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
)

Values = dict[str, Any]
"""What JSON can hold, NaN included."""


class Checkpoints:
    """The checkpoints of one stage: the `keep` newest are kept, and the one of `best_step`.

    `write_beside` adds what a model needs beside its weights, so that a checkpoint can be used as one.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        best_step: Callable[[], int | None] = lambda: None,
        write_beside: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.write_beside = write_beside
        self._keep = keep
        self._best_step = best_step

    def commit(self, step: int, write: Callable[[], None]) -> None:
        """Commit what `write` puts into `checkpoint-N` as a checkpoint; if a rank fails, all raise TrainingError."""
        state = PartialState()
        unfinished, named = self.folder / f"{_UNFINISHED}{step}", self.folder / f"{_NAME}{step}"
        last = max(self._committed(), key=step_of, default=None)
        then = f"continues from {last}" if last else "starts this stage over: there is no checkpoint before it"
        together = partial(_write_together, f"the checkpoint of step {step}", self.folder, then)
        if state.is_main_process:
            self._clear()
        state.wait_for_everyone()
        try:
            together(write)
            together(lambda: self._name(unfinished, named, step) if state.is_main_process else None)
        except TrainingError:
            if state.is_main_process:
                self._clear()
            raise
        if state.is_main_process:
            self._rotate(step)

    def latest(self) -> Path | None:
        """Return the newest complete checkpoint; a ConfigError if none is complete, or it is of another launch."""
        candidates = sorted(self._committed(), key=step_of, reverse=True)
        for path in candidates:
            launch, fault = _read_manifest(path)
            if not (faults := gather_object([fault] if fault else [])):
                if launch != _launch():
                    raise ConfigError(f"{path} is from a launch of {launch}, this one is {_launch()}: launch as then")
                return path
            if PartialState().is_main_process:
                _logger.warning("%s is incomplete and is skipped: %s", path, faults[0])
        if candidates:
            raise ConfigError(f"no checkpoint in {self.folder} is complete: repair one, or remove all to start over")
        return None

    def _committed(self) -> list[Path]:
        return [path for path in self.folder.glob(f"{_NAME}*") if path.name.removeprefix(_NAME).isdecimal()]

    def _name(self, unfinished: Path, named: Path, step: int) -> None:
        for path in (*unfinished.rglob("*"), unfinished):
            flush(path)
        write_json(unfinished / _MANIFEST, {"step": step, "launch": _launch(), "files": _sizes(unfinished)})
        if named.exists():  # from before this run continued from an earlier one
            named.rename(named.with_name(f".{named.name}"))
        unfinished.rename(named)
        flush(self.folder)

    def _rotate(self, step: int) -> None:
        """Keep this checkpoint, the newest before it and the best."""
        best, steps = self._best_step(), {step_of(path): path for path in self._committed()}
        # Those of later steps are from before the run went back to an earlier one.
        before = sorted((other for other in steps if other <= step), reverse=True)
        kept = {*before[: self._keep], *(other for other in before if other == best)}
        for other in steps.keys() - kept:
            steps[other].rename(steps[other].with_name(f"{_REPLACED}{other}"))
        self._clear()

    def _clear(self) -> None:
        """Remove unfinished and replaced checkpoints."""
        for path in [*self.folder.glob(f"{_UNFINISHED}*"), *self.folder.glob(f"{_REPLACED}*")]:
            shutil.rmtree(path, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step that a checkpoint was taken after."""
    return int(checkpoint.name.rpartition("-")[2])


def _write_together(target: str, folder: Path, then: str, work: Callable[[], Any]) -> None:
    """Do `work` on every rank; if one fails, all raise TrainingError."""
    fault = None
    try:
        work()
    except Exception as error:  # torch, safetensors and DeepSpeed each have errors of their own for a full disk
        fault = _reason(error, folder)
    if bad := [f"rank {rank}: {fault}" for rank, fault in enumerate(gather_object([fault])) if fault]:
        raise TrainingError(f"{target} could not be written ({'; '.join(bad)}); run.resume=auto then {then}")


def _reason(error: Exception, folder: Path) -> str:
    """Return why a file could not be written into a folder, and the remedy, as far as that can be found out."""
    try:
        if not (fault := file_fault(error)):
            check_writable(folder)
    except OSError as found:
        fault = file_fault(found)
    return explain(fault) if fault else f"{type(error).__name__}: {error}"


def _launch() -> str:
    """Return the kind of this launch, which must be the same to continue from a checkpoint."""
    state = PartialState()
    kind = f"{state.num_processes} x {state.distributed_type.value}"
    if state.distributed_type != DistributedType.DEEPSPEED:
        return kind
    return f"{kind} stage {AcceleratorState().deepspeed_plugin.hf_ds_config.get_value('zero_optimization.stage', 0)}"


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of a checkpoint, in bytes."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: files[name].stat().st_size for name in sorted(files) if name != _MANIFEST}


def _read_manifest(checkpoint: Path) -> tuple[str, str]:
    """Return the launch that wrote a checkpoint, and what is wrong with its files; empty if nothing is."""
    try:
        manifest = json.loads((checkpoint / _MANIFEST).read_text(encoding="utf-8"))
        then, now, launch = manifest["files"], _sizes(checkpoint), str(manifest["launch"])
        differing = [name for name in sorted({**then, **now}) if then.get(name) != now.get(name)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return "", f"{type(error).__name__}: {error}"
    return launch, f"{', '.join(differing)}: not what was written" if differing else ""


class CheckpointedTrainer(Trainer):
    """A transformers trainer whose checkpoints are complete or absent and hold each rank's own state.

    There is no checkpoint of the last step, whose result is saved as the model.
    """

    section = "scpo"  # of the settings of a training
    _metrics: dict[str, Any]  # TRL's own: values since the last log line, by mode and name
    _total_train_tokens: int  # TRL's own

    def __init__(self, *, checkpoints: Checkpoints, **settings: Any) -> None:
        loading = settings["args"].model_init_kwargs or {}
        with reading_model(str(settings["model"])):
            config = PreTrainedConfig.get_config_dict(settings["model"], revision=loading.get("revision"))[0]
            if loading.get("attn_implementation") == "sdpa" and config.get("attn_logit_softcapping"):
                loading["attn_implementation"] = "eager"  # SDPA does not cap attention scores
            super().__init__(**settings)
        policy: Any = self.accelerator.unwrap_model(self.model)
        require_embeddings(str(settings["model"]), policy, self.processing_class)
        tied = is_peft_model(policy) and policy.get_base_model().config.get_text_config().tie_word_embeddings
        if tied and isinstance(policy.get_base_model().get_input_embeddings(), BaseTunerLayer):
            raise ConfigError(
                "lora.target_modules: it adapts the embeddings, which are the LM head's as well: the saved model would "
                "be another than the trained one; name other layers, such as all-linear"
            )
        drop_sampling_settings(policy)
        self.checkpoints = checkpoints
        self.step_guard = StepGuard(self.accelerator, checkpoints.folder.with_name("faults"), self.section)
        self.add_callback(self.step_guard)
        self.resumed_from: Path | None = None
        self.add_callback(_Restore(self))
        self.remove_callback(PrinterCallback)  # `LiveView` shows what it would print

    def create_accelerator_and_postprocess(self) -> None:
        """Have FSDP2 leave outputs in the type that the model gives them; in `model.dtype` KL would be rounding."""
        super().create_accelerator_and_postprocess()
        plugin = self.accelerator.state.fsdp_plugin if self.accelerator.is_fsdp2 else None
        if plugin is not None and plugin.mixed_precision_policy is not None:
            plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, output_dtype=None)

    def train_from(self, checkpoint: Path | None) -> None:
        """Train from a committed checkpoint, or from the start; a TrainingError if a file of it holds code."""
        self.resumed_from = checkpoint
        try:
            with pickles_as_data() if checkpoint else nullcontext():
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except pickle.UnpicklingError as error:
            raise TrainingError(
                f"{checkpoint}: a file of it holds code, or no tensors at all, and was not loaded: find out who wrote "
                "it; without this folder, run.resume=auto continues from the checkpoint before it, or starts over"
            ) from error

    def rank_state(self) -> tuple[Values, dict[str, Tensor]]:
        """Return the state that only this rank has."""
        values = {"loss": float(self._tr_loss), "total_loss": self._total_loss_scalar}
        values |= {"last_logged": self._globalstep_last_logged}
        return values | {"metrics": self._metrics["train"], "tokens": self._total_train_tokens}, {}

    def load_rank_state(self, values: Values, tensors: dict[str, Tensor]) -> None:
        """Restore it."""
        self._tr_loss += values["loss"]
        self._total_loss_scalar += values["total_loss"]
        self._globalstep_last_logged = values["last_logged"]
        self._metrics["train"].update(values["metrics"])
        self._total_train_tokens = values["tokens"]

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Do not write TRL's model card: `hub.card` knows more."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:  # since transformers 5.23 every rank comes here, and one of them writes
            folder = Path(output_dir or self.args.output_dir)
            (folder / TRAINING_ARGS_NAME).unlink()  # a pickle that nothing loads
            (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty card of an adapter

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            self.checkpoints.commit(self.state.global_step, lambda: self._write_checkpoint(model, trial))

    def _write_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:
            if self.accelerator.distributed_type not in (DistributedType.DEEPSPEED, DistributedType.FSDP):
                raise
            # Their saves are collectives: this rank can only end, and the launcher then ends the others, which wait.
            print_error(f"a checkpoint could not be written: {_reason(error, self.checkpoints.folder)}")
            os._exit(2)
        folder = self.checkpoints.folder / f"{_UNFINISHED}{self.state.global_step}"
        if self.args.should_save:
            self.checkpoints.write_beside(folder)
        stem = folder / f"rank-{self.args.process_index}"
        values, tensors = self.rank_state()
        save_file(tensors, stem.with_suffix(".safetensors"))
        write_text(stem.with_suffix(".json"), json.dumps(values))


def drop_sampling_settings(model: Any) -> None:
    """Have a model saved without settings for sampling: a judge is greedy, and servers apply what they find there."""
    if given := getattr(model, "generation_config", None):
        ids = {name: getattr(given, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        model.generation_config = GenerationConfig(**ids)


@contextmanager
def pickles_as_data() -> Iterator[None]:
    """Have torch load pickles without running code, even when a library such as DeepSpeed asks for the opposite."""
    classes: list[Any] = []  # of DeepSpeed's, in its optimizer states
    if PartialState().distributed_type == DistributedType.DEEPSPEED:
        from deepspeed.runtime.fp16.loss_scaler import LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum
        from deepspeed.utils.tensor_fragment import fragment_address

        def stage(enum: type[ZeroStageEnum], name: str) -> ZeroStageEnum:
            if enum is not ZeroStageEnum:
                raise pickle.UnpicklingError(f"the attribute {name} of {enum}")
            return ZeroStageEnum[name]

        # Python before 3.11.4 pickles the stage as an attribute of its class.
        classes = [LossScaler, ZeroStageEnum, fragment_address, (stage, "builtins.getattr")]
    before = os.environ.get(_WEIGHTS_ONLY)
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        with torch.serialization.safe_globals(classes):
            yield
    finally:
        os.environ.pop(_WEIGHTS_ONLY)
        if before is not None:
            os.environ[_WEIGHTS_ONLY] = before


class _Restore(TrainerCallback):
    """Restores a rank's state before the first step, after transformers has loaded its part."""

    def __init__(self, trainer: CheckpointedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        if trainer.resumed_from is not None:
            stem = trainer.resumed_from / f"rank-{trainer.args.process_index}"
            values = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
            tensors = load_file(stem.with_suffix(".safetensors"))
            trainer.load_rank_state(values, {name: value.to(trainer.args.device) for name, value in tensors.items()})


class StopSignals(TrainerCallback):
    """Saves a checkpoint and stops at the first SIGINT, SIGTERM or SIGUSR1 of any rank; the second ends the process.

    All ranks stop together at the end of the step; a signal before a stage takes effect after its first step. Signals
    are received within the context; `stopped`, the same on all ranks, says whether training ended early.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._received = 0.0  # when, by the monotonic clock
        self._context = ExitStack()

    def __enter__(self) -> StopSignals:
        self._context.enter_context(on_signals(self._receive))
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def _receive(self, number: int) -> None:
        now = time.monotonic()
        if not self._received:
            self._received = now
            # torchrun (accelerate, with several processes) forwards two of the signals and launch/node.sh the third,
            # which Slurm may have sent to every process already. Of the others, the next one is the second.
            twice = [signal.SIGINT, signal.SIGTERM] if "TORCHELASTIC_RUN_ID" in os.environ else []
            twice += [signal.SIGUSR1] if "TAL_STOPPED" in os.environ else []
            end_at_next([each for each in STOP_SIGNALS if each not in twice])
            if PartialState().is_main_process:
                show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a second signal leaves no time for it
                message = f"{show_cursor}tal: asked to stop: saves at the end of this step; once more ends it at once\n"
                with suppress(OSError):
                    os.write(2, message.encode())  # `print` may be at work below this handler
        elif now - self._received > _FORWARDED_S:
            end_at_next()
            os.kill(os.getpid(), number)

    @property
    def received(self) -> bool:
        """Whether this rank has received a signal."""
        return self._received > 0

    def stop_requested(self) -> bool:
        """Return whether any rank has received a signal; all ranks call this together."""
        here = torch.tensor([int(self._received > 0)], device=PartialState().device)
        return bool(gather(here).any())

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and stop if a rank has received a signal; the last step stops anyway."""
        if self.stop_requested() and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop if a signal came during an evaluation: the checkpoint of the step is saved then."""
        if self.stop_requested() and state.global_step < state.max_steps:
            self.stopped = control.should_training_stop = True


def train_stage(
    run: RunFolder,
    trainer: CheckpointedTrainer,
    stage: str,
    signals: StopSignals,
    console: Console,
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train a stage to its end, from its last checkpoint if it has one, and record it in the folder of the run."""
    records = MetricsWriter(run.metrics, stage), ShardsWriter(trainer.accelerator, run.workers)
    for callback in (signals, *callbacks, *records):
        trainer.add_callback(callback)
    checkpoint = trainer.checkpoints.latest()
    step = step_of(checkpoint) if checkpoint else 0
    if PartialState().is_main_process:
        rewind(run, stage, step)
    if checkpoint:
        console.print(f"{stage} continues from step {step}")
    trainer.train_from(checkpoint)
    if signals.stopped:
        stop_if_requested(run.name, signals, f"step {trainer.state.global_step} of {stage}")


def stop_if_requested(run: str, signals: StopSignals, stage: str) -> None:
    """Raise RunStoppedError if a signal stops the run; all ranks call this together."""
    if signals.stop_requested():
        raise RunStoppedError(
            f"{run} was asked to stop and has saved after {stage}: repeat the command with run.name={run} "
            "run.resume=auto"
        )


def save_model(
    trainer: Trainer,
    base: str,
    settings: ModelSection,
    output: StageFolder,
    load: Callable[..., Any],
    finish: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Save a trained model as plain safetensors, however its weights were sharded; all ranks call this together.

    It is written whole or not at all: if `output.model` exists, the stage is done. An adapter of LoRA goes to
    `output.adapter`, and merged into `base`, which `load` loads as `from_pretrained` does, to `output.model`. `finish`
    adds files of its own to both folders before the latter gets its name.
    """
    state, unfinished = PartialState(), output.model.with_name(f".{output.model.name}")

    def write() -> None:
        if not is_peft_model(trainer.model):
            if not uses_deepspeed():  # which saves in the type of its own weights
                trainer.model.to(getattr(torch, settings.dtype))  # trained in float32, perhaps
            trainer.save_model(str(unfinished))
            return
        # Of the base, if it is from the Hub.
        commit = getattr(trainer.model.config, "_commit_hash", None) or settings.revision
        trainer.model.active_peft_config.revision = commit
        trainer.save_model(str(output.adapter))
        if not state.is_main_process:
            return
        loading = {"revision": commit, "dtype": settings.dtype, "trust_remote_code": False}
        with unsharded():  # this rank loads the base alone
            # The adapter's file has all that was trained: no rank needs to hold the policy's weights whole.
            merged = PeftModel.from_pretrained(load(base, **loading), str(output.adapter))
            whole = merged.merge_and_unload()
            drop_sampling_settings(whole)
            whole.save_pretrained(unfinished)
        trainer.processing_class.save_pretrained(unfinished)

    def commit() -> None:
        for folder in (output.adapter, unfinished) if is_peft_model(trainer.model) else (unfinished,):
            finish(folder)
        for path in (*unfinished.rglob("*"), unfinished):
            flush(path)
        unfinished.rename(output.model)
        flush(output.path)

    if state.is_main_process:
        shutil.rmtree(unfinished, ignore_errors=True)
    state.wait_for_everyone()
    together = partial(_write_together, str(output.model), output.path, "continues from the last checkpoint")
    together(write)
    together(lambda: commit() if state.is_main_process else None)


def unsharded() -> AbstractContextManager[None]:
    """Have transformers load models whole, even under ZeRO-3, where loading is otherwise a collective of all ranks."""
    return patch.object(deepspeed, "_hf_deepspeed_config_weak_ref", None)

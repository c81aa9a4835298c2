"""Callbacks that record a run: metrics, completions, measurements, the live view, trackers, how it is sharded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object
from rich.console import Console
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.integrations import TensorBoardCallback
from trl import GRPOTrainer

from think_as_locals.config.run_schema import RunConfig
from think_as_locals.runtime.files import append_json, parquet, write_bytes, write_json
from think_as_locals.runtime.output import shorten_repeats
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.runtime.terminal import progress_bar
from think_as_locals.training.throughput import count_parameters
from think_as_locals.types import TEST, cut

_TEXTS, _SHOWN = ("prompt", "completion"), 400  # of a completion that is shown, and characters of each


class MetricsWriter(TrainerCallback):
    """Appends what a trainer logs to `metrics.jsonl`, a JSON object a line."""

    def __init__(self, path: Path, stage: str) -> None:
        self._path = path
        self._stage = stage

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            append_json(self._path, {"stage": self._stage, "step": state.global_step, **logs})


class CompletionsWriter(TrainerCallback):
    """Writes the main process's scored completions, a file for each step, and shows one of them now and then."""

    def __init__(
        self, run: RunFolder, take_rows: Callable[[], list[dict[str, Any]]], console: Console, show_every: int
    ) -> None:
        self._run = run
        self._take_rows = take_rows  # of the last step
        self._console = console
        self._show_every = show_every

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        rows = self._take_rows()
        if state.is_world_process_zero and rows:
            self._run.completions_dir.mkdir(parents=True, exist_ok=True)
            write_bytes(self._run.completions(state.global_step), parquet(rows))
            # TRL's `log_completions` writes only those of the last batch before each logged step.
            if state.global_step == 1 or state.global_step % self._show_every == 0:
                shown = {name: cut(" ".join(shorten_repeats(rows[0][name]).split()), _SHOWN) for name in _TEXTS}
                texts = "".join(f"\n  {name}: {text}" for name, text in shown.items())
                reward = "none" if rows[0]["reward"] is None else f"{rows[0]['reward']:+.3f}"
                of = f"  best {rows[0]['best_label']}, reward {reward}"
                self._console.print(f"step {state.global_step}, one of {len(rows)} completions:{texts}\n{of}")


class EvalCallback(TrainerCallback):
    """Measures before training, every `every_steps` steps and after the last.

    `evaluate` is called with a step; one that `run` has the results of is done. It raises KeyboardInterrupt if a signal
    stops it.
    """

    def __init__(
        self, trainer: GRPOTrainer, evaluate: Callable[[int], dict[str, float]], run: RunFolder, every_steps: int
    ) -> None:
        self._trainer = trainer
        self._evaluate = evaluate
        self._run = run
        self._every_steps = every_steps

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Evaluate before the first step, or at the step where a stopped run had no time to, and log that by itself."""
        if not self._due(state) or self._run.evaluation(TEST, state.global_step).is_file():
            return
        if metrics := self._evaluate(state.global_step):
            # TRL's own `log` would also log what a resumed run averages with the steps to come.
            Trainer.log(self._trainer, metrics)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Evaluate and save a checkpoint; the metrics join what the trainer logs for this step, if anything."""
        stops_early = control.should_training_stop and state.global_step < state.max_steps
        if self._due(state) and not stops_early:
            control.should_save = True
            try:
                metrics = self._evaluate(state.global_step)
            except KeyboardInterrupt:
                if state.global_step == state.max_steps:  # of which there is no checkpoint
                    raise
                return  # once the step is saved, `StopSignals` stops the run
            if control.should_log:
                for name, value in metrics.items():
                    self._trainer._metrics["train"][name].append(value)
            elif metrics:  # the next line would have their mean with those of later evaluations
                Trainer.log(self._trainer, metrics)

    def _due(self, state: TrainerState) -> bool:
        return bool(state.global_step % self._every_steps == 0 or state.global_step == state.max_steps)


_METRICS = {  # metric -> label and format
    "loss": ("loss", "{:.3f}"),
    "mean_token_accuracy": ("token accuracy", "{:.3f}"),
    "accuracy": ("pairs right", "{:.1%}"),
    "reward": ("reward", "{:+.3f}"),
    "rewards/correctness/mean": ("correctness", "{:+.3f}"),
    "rewards/structure/mean": ("structure", "{:.3f}"),
    "rewards/criteria_gain/mean": ("criteria gain", "{:+.3f}"),
    "criteria_gain_clipped": ("gains clipped", "{:.1%}"),
    "degenerate_reward_share": ("reward without judging", "{:.1%}"),
    "consistent_accuracy": ("both orders right", "{:.1%}"),
    "parse_failure": ("parse failures", "{:.1%}"),
    "frac_reward_zero_std": ("zero-variance groups", "{:.1%}"),
    "completions/mean_length": ("tokens a completion", "{:.0f}"),
    "kl": ("KL to the reference", "{:.4f}"),
    "entropy": ("entropy", "{:.3f}"),
    "grad_norm": ("gradient norm", "{:.2g}"),
    "learning_rate": ("learning rate", "{:.2g}"),
    "update/tokens_per_s": ("tokens/s of the update", "{:,.0f}"),
    "update/mfu": ("MFU", "{:.0%}"),
}
LINE_EVERY_S = 15.0
"""Seconds between two lines about the progress, at least."""


class LiveView(TrainerCallback):
    """Shows a stage: its figures as a line now and then, in a terminal above a bar of its steps."""

    def __init__(self, console: Console, stage: str) -> None:
        self._console = console
        self._stage = stage
        self._latest: dict[str, float] = {}
        self._tokens = (0.0, time.monotonic())
        self._printed = -LINE_EVERY_S
        self._progress = progress_bar(console)
        self._task = self._progress.add_task(stage, total=None)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Show the bar."""
        if not state.is_world_process_zero:
            return
        self._progress.update(self._task, total=state.max_steps, completed=state.global_step)
        counted = (logs["num_tokens"] for logs in reversed(state.log_history) if "num_tokens" in logs)
        self._tokens = (next(counted, 0.0), time.monotonic())  # those before a stop were not counted in this time
        if self._console.is_terminal:
            self._progress.start()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Advance the bar."""
        self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print the latest figures."""
        if not state.is_world_process_zero or not logs or _METRICS.keys().isdisjoint(logs):
            return
        self._latest |= {key: value for key, value in logs.items() if isinstance(value, float | int)}
        tokens, now = self._latest.get("num_tokens", 0.0), time.monotonic()
        if tokens > self._tokens[0]:
            self._latest["tokens/s"] = (tokens - self._tokens[0]) / max(now - self._tokens[1], 1e-9)
            self._tokens = (tokens, now)
        if now - self._printed >= LINE_EVERY_S or state.global_step == state.max_steps:
            self._printed = now
            figures = self._figures()
            if left := self._progress.tasks[0].time_remaining:
                figures.append(f"left {left:.0f} s")
            step = f"{self._stage} {state.global_step}/{state.max_steps}"
            line = "  ".join([time.strftime("%H:%M:%S"), step, *figures])
            self._console.print(line, soft_wrap=True)  # in a log, a line is a line

    def close(self) -> None:
        """End the bar; also after an error, so that the terminal is left intact."""
        self._progress.stop()

    def _figures(self) -> list[str]:
        latest = self._latest
        figures = [f"{name} {form.format(latest[key])}" for key, (name, form) in _METRICS.items() if key in latest]
        figures += [
            f"{key.split('/')[1].replace('_', ' ')} {latest[key]:+.3f}"
            for key in sorted(latest.keys() - _METRICS.keys())
            if fnmatchcase(key, "rewards/*/mean")
        ]
        if "tokens/s" in latest:
            figures.append(f"tokens/s {latest['tokens/s']:,.0f}")
        return figures


@contextmanager
def tracked(trainer: Trainer, config: RunConfig, run: RunFolder, part: str = "") -> Iterator[None]:
    """Track the training in the context by `grpo.report_to`; a `part` of the run, the cold start, by itself."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = f"{run.tensorboard}{part}"  # by default it is among the checkpoints
    if "wandb" not in config.grpo.report_to or not PartialState().is_main_process:
        yield
        return
    import wandb

    with wandb.init(  # to which transformers then adds
        project=os.environ.get("WANDB_PROJECT", trainer.args.project),
        name=f"{config.run.name}{part}",
        id=f"{run.read_id()}{part}",
        resume="allow",
        dir=os.environ.get("WANDB_DIR", run.path),
        config={"think_as_locals": config.model_dump()},
        allow_val_change=True,  # a resumed run has `resume: auto`
    ):
        yield


class ShardsWriter(TrainerCallback):
    """Writes `workers.json`: the kind of sharding, the device, and how many parameters each rank holds."""

    def __init__(self, accelerator: Accelerator, path: Path) -> None:
        self._accelerator = accelerator
        self._path = path

    def on_train_begin(
        self, args: Any, state: TrainerState, control: Any, model: torch.nn.Module, optimizer: Any, **kwargs: Any
    ) -> None:
        """Write the file once the weights are on their devices."""
        parameters = list(model.parameters())
        optimized = [p for group in optimizer.param_groups for p in group["params"]]
        trained = [p for p in parameters if p.requires_grad]  # ZeRO-3 fills its groups only while it steps
        here = {"parameters": _local_size(parameters), "optimized": _local_size(optimized) or _local_size(trained)}
        ranks = gather_object([here])
        plugin, device = self._accelerator.state.deepspeed_plugin, self._accelerator.device
        if state.is_world_process_zero:
            record = {
                "kind": self._accelerator.distributed_type.value,
                "zero_stage": plugin.zero_stage if plugin else None,
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
                "parameters": count_parameters(parameters)[0],
                "ranks": ranks,
            }
            write_json(self._path, record)


def _local_size(parameters: Iterable[Any]) -> int:
    """Return how many elements of the parameters this rank holds, under DeepSpeed, FSDP or neither."""
    whole = (p.to_local() if hasattr(p, "to_local") else p for p in parameters)
    return sum(getattr(p, "ds_tensor", p).numel() for p in whole)

"""One run, top to bottom: items -> cold start -> GRPO with CARB at checkpoints -> model -> report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object
from accelerate.utils.memory import clear_device_cache
from rich.console import Console
from transformers import AutoModelForCausalLM, PrinterCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOTrainer

from think_as_locals.data import Splits
from think_as_locals.data.select import select, shuffle_labels
from think_as_locals.evaluation import carb
from think_as_locals.evaluation.report import write_report
from think_as_locals.generation import Chat
from think_as_locals.judging import render
from think_as_locals.models.generative import Judge, JudgeSettings
from think_as_locals.models.prediction import Prediction
from think_as_locals.models.scratch import make_judge
from think_as_locals.schema import RunConfig, SftSection
from think_as_locals.stages import save_whole, stop_if_asked, train_stage
from think_as_locals.training.callbacks import CarbCallback, CompletionsWriter, MetricsWriter
from think_as_locals.training.demonstrations import Demonstration, demonstrate
from think_as_locals.training.grpo import load_chat, make_trainer
from think_as_locals.training.live import LiveView
from think_as_locals.training.rollouts import policy_engine
from think_as_locals.training.saving import save_model
from think_as_locals.training.sft import bias_of, make_cold_start
from think_as_locals.training.shards import ShardsWriter
from think_as_locals.training.signals import StopSignals
from think_as_locals.training.tracking import track
from think_as_locals.types import Item

_TOKENIZER_DEMONSTRATIONS = 4000


def run(config: RunConfig, splits: Splits, folder: Path) -> None:
    """Train a judge; every process of a launch calls this with the same arguments.

    Args:
        config: The run.
        splits: Its items, from `load`.
        folder: Its folder, from `open_run`: what is done there already is not done again.

    Raises:
        RunStoppedError: on every rank, where one was sent SIGTERM or SIGUSR1.
    """
    with StopSignals() as signals:
        _run(config, splits, folder, signals, Console(quiet=not PartialState().is_main_process))


def _run(config: RunConfig, splits: Splits, folder: Path, signals: StopSignals, console: Console) -> None:
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    test = select(splits.test, config.eval.max_items)
    console.print(
        f"{config.run.name}: {len(splits.train):,} items to learn from, {len(test):,} to be measured on "
        f"({config.data.source}, split by {config.data.split})"
    )
    model = str(config.model.path)  # or what the cold start makes of it
    if config.sft is not None:
        model = _cold_start(config, config.sft, splits.train, folder, signals, console)
        stop_if_asked(config.run.name, signals, "the cold start")
    train = shuffle_labels(splits.train, config.seed) if config.data.shuffle_labels else splits.train
    if not (folder / "model").is_dir():
        _grpo(config, model, train, test, folder, signals, console)
    if PartialState().is_main_process:
        report = write_report(folder)
        console.print(
            f"model       {folder / 'model'}\nreport      {report}\njudgements  {folder / 'carb'}", highlight=False
        )


def _cold_start(
    config: RunConfig, sft: SftSection, train: Sequence[Item], run: Path, signals: StopSignals, console: Console
) -> str:
    """Make the judge where it is to be made, teach it the grammar; returns where it lies."""
    folder = run / "cold_start"
    taught = folder / "model"
    if taught.is_dir():
        return str(taught)
    state = PartialState()
    count = sft.max_steps * sft.per_device_train_batch_size * sft.gradient_accumulation_steps * state.num_processes
    demonstrations = list(demonstrate(train, count, bias_of(sft), config.seed))
    model = str(config.model.path)
    if config.model.scratch is not None:
        model = str(folder / "untrained")
        if state.is_main_process:
            texts = [
                text
                for shown in demonstrations[:_TOKENIZER_DEMONSTRATIONS]
                for message in render(shown.item, config.prompt.template, config.seed)
                for text in (message["content"], shown.completion)
            ]
            parameters = make_judge(Path(model), texts, config.model.scratch, config.seed)
            console.print(f"made a judge of {parameters / 1e6:.2f} M parameters")
        state.wait_for_everyone()
    _teach(config, sft, model, demonstrations, run, signals, console).free_memory()
    clear_device_cache(garbage_collection=True)  # the trainer and its callbacks, which hold one another
    return str(taught)


def _teach(
    config: RunConfig,
    sft: SftSection,
    model: str,
    demonstrations: Sequence[Demonstration],
    run: Path,
    signals: StopSignals,
    console: Console,
) -> Accelerator:
    """Train a model on demonstrations, to `cold_start/model`; returns what it was trained by."""
    folder = run / "cold_start"
    with closing(LiveView(console, "cold start")) as view:
        trainer = make_cold_start(config, sft, model, demonstrations, folder)
        for callback in (signals, MetricsWriter(run / "metrics.jsonl", "sft"), view):
            trainer.add_callback(callback)
        train_stage(config.run.name, trainer, "sft", run, signals, console)
    save_whole(trainer.save_model, settings_of(config).save, folder / "model")
    return trainer.accelerator


def _grpo(
    config: RunConfig,
    model: str,
    train: Sequence[Item],
    test: Sequence[Item],
    folder: Path,
    signals: StopSignals,
    console: Console,
) -> None:
    """GRPO from a model to `folder/model`, measured by CARB before, at checkpoints and after."""
    trainer, rewards = make_trainer(config, model, train, folder)
    measured = folder / "carb"
    trainer.checkpoints.best = lambda: carb.best_step(measured)
    evaluator = Evaluator(config, trainer, load_chat(config, model), test, measured, console)
    view = LiveView(console, "GRPO")
    trainer.remove_callback(PrinterCallback)
    for callback in (
        signals,
        CarbCallback(trainer, evaluator, measured, config.eval.every_steps),
        CompletionsWriter(folder / "completions", rewards),
        MetricsWriter(folder / "metrics.jsonl", "grpo"),
        ShardsWriter(trainer.accelerator, folder / "workers.json"),
        view,
    ):
        trainer.add_callback(callback)
    track(trainer, config, folder)
    with closing(view):
        train_stage(config.run.name, trainer, "grpo", folder, signals, console)
    adapter = folder / "adapter" if config.lora else None
    write = partial(save_model, trainer, model, config.model, adapter, kind=AutoModelForCausalLM)
    save_whole(write, settings_of(config).save, folder / "model")


def settings_of(config: RunConfig) -> JudgeSettings:
    """What a judge of this run must be asked with."""
    return JudgeSettings(
        prompt=config.prompt.template,
        seed=config.seed,
        max_completion_length=config.grpo.max_completion_length,
        dtype=config.model.dtype,
        chat_template_kwargs=dict(config.model.chat_template_kwargs),
    )


class Evaluator:
    """Measures the policy on CARB: the ranks share the items, the main one writes the files."""

    def __init__(
        self,
        config: RunConfig,
        trainer: GRPOTrainer,
        chat: Chat,
        items: Sequence[Item],
        folder: Path,
        console: Console,
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._chat = chat
        self._items = items
        self._folder = folder
        self._console = console

    def __call__(self, step: int) -> dict[str, float]:
        """Judge all items; returns the metrics on the main process, nothing on the others."""
        state, config = PartialState(), self._config
        with policy_engine(self._trainer, self._chat, config.eval.batch_size) as engine:
            mine = Judge(engine, settings_of(config)).predict(self._items[state.process_index :: state.num_processes])
        predictions: list[Prediction] = gather_object(mine)
        if not state.is_main_process:
            return {}
        by_id = {prediction.item.id: prediction for prediction in predictions}
        ordered = [by_id[item.id] for item in self._items]
        summary = carb.summarise(
            ordered,
            dataset=config.data.source,
            split=config.data.split,
            model=config.run.name,
            seed=config.seed,
            step=step,
            bootstrap_samples=config.eval.bootstrap_samples,
        )
        carb.save(summary, ordered, self._folder / f"step-{step}.json")
        low, high = summary["ci95"]
        self._console.print(
            f"CARB at step {step}: {summary['accuracy']:.1%} [{low:.1%}, {high:.1%}] on n={summary['n']}, "
            f"parse failures {summary['parse_failure']:.1%}",
            highlight=False,
        )
        return carb.metrics(summary)

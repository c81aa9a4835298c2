"""What a recipe would do on this machine: `tal run --dry-run`, in rows of a name and a text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from think_as_locals.config.launch import read_launch
from think_as_locals.config.model_schema import (
    ChatSection,
    DemonstrationConfig,
    EditConfig,
    EvaluationConfig,
    GrpoConfig,
    PolicyConfig,
    PolicyServerSection,
    SampleConfig,
    SampleSection,
    TeacherSection,
)
from think_as_locals.config.schema import RunConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.data.load import check_leaks
from think_as_locals.machine.preflight import missing_for
from think_as_locals.run import load_data, load_single
from think_as_locals.runtime.run_folder import run_folder
from think_as_locals.types import ConfigError, Item, first_of

if TYPE_CHECKING:
    from think_as_locals.data.load import TrainingData
    from think_as_locals.data.splits import Splits
    from think_as_locals.policy import PolicyData

Rows = list[tuple[str, str]]


def plan(recipe: str, overrides: Sequence[str]) -> Rows:
    """Return what a run would read, do and measure, and what this machine lacks for it.

    The data are read, no model is loaded and no folder is made. What is wrong with recipe or data is the same error as
    at a start.
    """
    config = load_single(recipe, overrides)
    run_folder(config)
    if isinstance(config, EvaluationConfig):
        from think_as_locals import evaluate

        measured = evaluate.load_data(config).items
        rows = [
            ("reward models", ", ".join(config.rms)),
            ("items", f"{_described(measured)} ({config.data.source}, {config.eval.items})"),
            *(_planned(config.sample, config.seed) if config.sample else ()),
            ("memory", "estimated only for training"),
        ]
    elif isinstance(config, SampleConfig):
        rows = _planned(config.sample, config.seed)
    elif isinstance(config, EditConfig):
        from think_as_locals import edit

        rows = [
            ("editor", _name(config.editor)),
            ("items", f"{_described(edit.items_of(config))} ({config.data.source}, {config.items})"),
            ("probes", f"{', '.join(config.probes)}, up to {config.tries} tries per edit"),
        ]
    elif isinstance(config, DemonstrationConfig):
        from think_as_locals import demonstrate

        items = demonstrate.items_of(config)
        orders = ", in both orders" if config.both_orders else ""
        rows = [
            ("teacher", _name(config.teacher)),
            ("items", f"{_described(items)} ({config.data.source}, {config.items})"),
            ("tries", f"up to {config.tries}{orders}{', then with the hint' if config.hint else ''}"),
        ]
    else:
        rows = _of_training(config)
    lacking = [("lacking here", fault) for fault in missing_for(config)]
    return [*rows, ("runs folder", config.run.dir), *lacking]


def _of_training(config: RunConfig | PolicyConfig | ScpoConfig) -> Rows:
    from think_as_locals.training.grpo import check_arguments

    data = load_data(config)
    if isinstance(config, RunConfig):
        check_leaks(config, data)
    check_arguments(config, read_launch(config.run.launch or "single").processes)
    if isinstance(config, ScpoConfig):
        return _scpo_plan(config, data)
    return _policy_plan(config, data) if isinstance(config, PolicyConfig) else _training_plan(config, data)


def _scpo_plan(config: ScpoConfig, data: Splits) -> Rows:
    from think_as_locals.scpo.results import variant_specs
    from think_as_locals.scpo.trainer import num_steps

    scpo, variants = config.scpo, ", ".join(config.scpo.variants)
    specs = variant_specs(config, sorted({str(item.culture) for item in data.test}))
    most = max(Counter(item.culture for item in data.train).values())
    steps = num_steps(scpo, most, exactly=config.mode.steps == "exactly")
    length = f"each up to {steps:,} steps of {scpo.batch_size:,} pairs"
    return [
        ("model", f"{config.model.path or 'randomly initialised'}, steered to each country: {variants}"),
        ("trainings", f"{len(specs):,}, {length}; seeds {', '.join(map(str, scpo.seeds))}"),
        ("training items", f"{_described(data.train)} ({config.data.source})"),
        ("test items", _described(data.test)),
        *_estimates(config, data.train, 0),
    ]


def _policy_plan(config: PolicyConfig, data: PolicyData) -> Rows:
    from think_as_locals.machine.hours import steps_of

    grpo, launch = config.grpo, read_launch(config.run.launch or "single")
    steps, rm = steps_of(config, launch, len(data.train)), config.rm
    rewarded = getattr(rm, "path", None) or getattr(rm, "model", "")
    asked = ((name, [each.item for each in of_task]) for name, of_task in data.questions.items())
    times = 1 + math.ceil(steps / config.eval.every_steps)
    return [
        ("training", f"{config.model.path}: GRPO, {steps:,} steps, {grpo.num_generations} completions per prompt"),
        ("prompts", f"those of {_described(data.train)} ({config.data.source})"),
        ("reward model", f"{rm.kind} {rewarded}".strip()),
        *((f"task {name}", f"{_described(of_task)} ({config.tasks[name].task})") for name, of_task in asked),
        ("evaluations", f"{times:,}: before GRPO, every {config.eval.every_steps} steps and at the end"),
        *_estimates(config, data.train, 0),
    ]


def _training_plan(config: RunConfig, data: TrainingData) -> Rows:
    from think_as_locals.machine.hours import steps_of

    grpo, every, launch = config.grpo, config.eval.every_steps, read_launch(config.run.launch or "single")
    steps = steps_of(config, launch, len(data.train))
    batch = grpo.per_device_train_batch_size * grpo.gradient_accumulation_steps * launch.processes
    times, judged = 1 + math.ceil(steps / every), sum(len(each.items) * each.orders for each in data.sets.values())
    sft = f"SFT, {config.sft.length}, then " if config.sft else ""
    weights, path = config.reward.weights.items(), config.model.path or "a randomly initialised model"
    return [
        ("training", f"{path}: {sft}GRPO, {steps:,} steps of {batch:,} completions"),
        ("training items", f"{_described(data.train)} ({', '.join(config.sources)})"),
        ("rollouts", f"{grpo.num_generations} per prompt, up to {grpo.max_completion_length} tokens each"),
        ("rewards", ", ".join(f"{name} {weight:g}" for name, weight in weights if weight)),
        *((f"set {name}", f"{_described(s.items)} ({s.dataset}, {s.split})") for name, s in data.sets.items()),
        ("evaluations", f"{times:,} of {judged:,} judgements each: before GRPO, every {every} steps and at the end"),
        *_estimates(config, data.train, judged),
    ]


def _estimates(config: GrpoConfig | ScpoConfig, train: Sequence[Item], judgements: int) -> Rows:
    """Return the memory that a run takes, and on GPUs the hours of a judge's training."""
    from think_as_locals.machine import hours
    from think_as_locals.machine.memory import GB, count, needed_bytes
    from think_as_locals.runtime.gpus import gpus

    name = config.run.launch or "single"
    launch = read_launch(name)
    try:
        counts = count(config)
    except ConfigError as error:
        return [("memory", str(error))]
    of = f"each GPU of launch/{name}.yaml" if config.model.requires_gpu else "memory in addition to torch itself"
    needed = f"about {needed_bytes(config, launch, counts) / GB:.1f} GB of {of}"
    rows = [("memory", f"{needed}; for other launch files: tal doctor --launch")]
    if isinstance(config, RunConfig) and config.model.requires_gpu:
        rows.append(("hours", hours.described(config, launch, counts, gpus(), len(train), judgements)))
    return rows


def _planned(sample: SampleSection, seed: int) -> Rows:
    from think_as_locals.evaluation.tasks import questions_of

    items = [question.item for question in questions_of(sample, seed)]
    drawn = f"{sample.num_candidates} per question from {_name(sample.policy)} ({sample.task})"
    return [("candidates", drawn), ("questions", _described(items))]


def _name(model: ChatSection | TeacherSection) -> str:
    return model.model if isinstance(model, PolicyServerSection) else model.path


def _described(items: Sequence[Item]) -> str:
    groups, cultures = len({item.group for item in items}), {str(item.culture) for item in items}
    languages = sorted({item.language for item in items})
    named = first_of(languages, 8)
    return f"{len(items):,} items, {groups:,} question groups, {len(cultures)} cultures, languages {named}"

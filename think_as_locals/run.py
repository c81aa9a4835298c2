"""Start a recipe with its overrides in each process of a launch: training, evaluation, SCPO and the others."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from think_as_locals.config.schema import (
    DemonstrationConfig,
    EditConfig,
    EvaluationConfig,
    PolicyConfig,
    PolicySection,
    PolicyServerSection,
    RunConfig,
    SampleConfig,
    SampleSection,
    ServerSection,
)
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.runtime.ranks import Peers, take_up_launch
from think_as_locals.runtime.signals import interrupt, on_signals
from think_as_locals.runtime.startup import loading
from think_as_locals.types import ConfigError, DataWarning, Item

if TYPE_CHECKING:
    from think_as_locals.config.checks import Config
    from think_as_locals.config.schema import GrpoConfig
    from think_as_locals.data.load import TrainingData
    from think_as_locals.data.splits import Splits
    from think_as_locals.policy import PolicyData
    from think_as_locals.runtime.run_folder import RunFolder


def start(recipe: str, overrides: Sequence[str]) -> RunFolder:
    """Train, evaluate, steer, demonstrate or sample, as a recipe says; in a launch every process calls this.

    The main process alone composes the recipe, and sends it to the others, so that no two processes can differ.
    """
    from think_as_locals.runtime.run_folder import resumable

    with ExitStack() as lock:
        with loading():
            program, run = _prepare(recipe, overrides, lock)
        with resumable(run.path), on_signals(interrupt):
            program()
    return run


def plan(recipe: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return what a run would read, do and measure; the data are read, no model is loaded and no folder is made."""
    from think_as_locals.config.checks import load_config

    config = load_config(recipe, overrides)
    if isinstance(config, EvaluationConfig):
        from think_as_locals import evaluate

        measured = evaluate.load_items(config)
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
            ("editor", _chat_name(config.editor)),
            ("items", f"{_described(edit.items_of(config))} ({config.data.source}, {config.items})"),
            ("probes", f"{', '.join(config.probes)}, up to {config.tries} tries per edit"),
        ]
    elif isinstance(config, DemonstrationConfig):
        from think_as_locals import demonstrate

        teacher, items = config.teacher, demonstrate.items_of(config)
        orders = ", in both orders" if config.both_orders else ""
        rows = [
            ("teacher", teacher.model if isinstance(teacher, ServerSection) else teacher.path),
            ("items", f"{_described(items)} ({config.data.source}, {config.items})"),
            ("tries", f"up to {config.tries}{orders}{', then with the hint' if config.hint else ''}"),
        ]
    elif isinstance(config, ScpoConfig):
        rows = _scpo_plan(config, load_data(config))
    elif isinstance(config, PolicyConfig):
        rows = _policy_plan(config, load_data(config))
    else:
        rows = _training_plan(config, load_data(config))
    return [*rows, ("runs folder", config.run.dir)]


def _scpo_plan(config: ScpoConfig, data: Splits) -> list[tuple[str, str]]:
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


def _policy_plan(config: PolicyConfig, data: PolicyData) -> list[tuple[str, str]]:
    from think_as_locals.config.compose import find_launch, read_launch
    from think_as_locals.machine.hours import steps_of

    grpo, launch = config.grpo, read_launch(find_launch(config.run.launch or "single"))
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


def _training_plan(config: RunConfig, data: TrainingData) -> list[tuple[str, str]]:
    from think_as_locals.config.compose import find_launch, read_launch
    from think_as_locals.data.load import check_leaks
    from think_as_locals.machine.hours import steps_of

    check_leaks(config, data)
    grpo, every, launch = config.grpo, config.eval.every_steps, read_launch(find_launch(config.run.launch or "single"))
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


def _estimates(config: GrpoConfig | ScpoConfig, train: Sequence[Item], judgements: int) -> list[tuple[str, str]]:
    """Return the memory that a run takes, and on GPUs the hours of a judge's training."""
    from think_as_locals.config.compose import find_launch, read_launch
    from think_as_locals.machine import hours
    from think_as_locals.machine.fit import needed_bytes
    from think_as_locals.machine.gpus import gpus
    from think_as_locals.machine.memory import GB, count

    name = config.run.launch or "single"
    launch = read_launch(find_launch(name))
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


def _planned(sample: SampleSection, seed: int) -> list[tuple[str, str]]:
    from think_as_locals.evaluation.tasks import questions_of

    items = [question.item for question in questions_of(sample, seed)]
    drawn = f"{sample.num_candidates} per question from {_chat_name(sample.policy)} ({sample.task})"
    return [("candidates", drawn), ("questions", _described(items))]


def _chat_name(model: PolicySection | PolicyServerSection) -> str:
    return model.path if isinstance(model, PolicySection) else model.model


def _described(items: Sequence[Item]) -> str:
    groups, cultures = len({item.group for item in items}), {str(item.culture) for item in items}
    languages = sorted({item.language for item in items})
    more = f" and {len(languages) - 8} more" if len(languages) > 8 else ""
    return (
        f"{len(items):,} items, {groups:,} question groups, {len(cultures)} cultures, "
        f"languages {', '.join(languages[:8])}{more}"
    )


def _prepare(recipe: str, overrides: Sequence[str], lock: ExitStack) -> tuple[Callable[[], None], RunFolder]:
    """Return the program of a recipe with all it needs (configuration, items), and the locked folder of the run."""
    config: GrpoConfig | ScpoConfig | None = None
    data = run = None
    settings = _composed(recipe, overrides) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else {}
    if "rms" in settings:
        from think_as_locals.machine.gpus import take_own_gpus

        take_own_gpus()
    if int(os.environ.get("RANK", "0")) > 0:
        if "rms" in settings:
            return _without_training(None, lock)
        take_up_launch(settings.get("run", {}).get("launch"))
    else:
        loaded = _load(recipe, overrides)
        if not isinstance(loaded, RunConfig | PolicyConfig | ScpoConfig):
            return _without_training(loaded, lock)
        data = load_data(loaded)
        config = _fitted(loaded, data, recipe, overrides)
    if "WORLD_SIZE" in os.environ:
        config, run = _share(config, lock)
    elif config is not None:
        run = _open(config, lock)
    if config is None or run is None:  # the main process says why
        raise SystemExit(2)
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # the main process gave them
        data = data or load_data(config)
    if isinstance(config, ScpoConfig):
        from think_as_locals import steer

        return partial(steer.run, config, data, run), run
    if isinstance(config, PolicyConfig):
        from think_as_locals import policy

        return partial(policy.run, config, data, run), run
    from think_as_locals import train

    return partial(train.run, config, data, run), run


def _fitted(
    config: GrpoConfig | ScpoConfig, data: Any, recipe: str, overrides: Sequence[str]
) -> GrpoConfig | ScpoConfig:
    """Return the configuration with what follows from data and GPU, after the check of what is measured."""
    from think_as_locals.data.load import check_leaks
    from think_as_locals.machine.fit import fitted, longest_answer, longest_sequence

    if isinstance(config, ScpoConfig):
        return config
    if isinstance(config, PolicyConfig):
        return fitted(config, partial(longest_answer, config, data.prompts), recipe, overrides)
    check_leaks(config, data)
    return fitted(config, partial(longest_sequence, config, data), recipe, overrides)


def _load(recipe: str, overrides: Sequence[str]) -> Config:
    """Load the configuration in the main process, and check that machine and launch have what it needs."""
    from think_as_locals.config.checks import load_config
    from think_as_locals.machine.preflight import preflight

    config = load_config(recipe, overrides)
    if isinstance(config, RunConfig) and config.variants:
        names = ", ".join(config.variants)
        raise ConfigError(f"{config.recipe} is a sweep over variants ({names}): tal run -m {recipe}")
    if (launched := take_up_launch(config.run.launch)) is not None:
        print(launched)
    preflight(config, recipe, overrides)
    return config


def _composed(recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a recipe's settings, some of which a process needs before the main one can tell it."""
    from think_as_locals.config.compose import compose_recipe

    try:
        return compose_recipe(recipe, overrides)
    except ConfigError:  # the main process says what is wrong, and ends the others
        return {}


def _without_training(
    config: EvaluationConfig | DemonstrationConfig | SampleConfig | EditConfig | None, lock: ExitStack
) -> tuple[Callable[[], None], RunFolder]:
    """As `_prepare`, for what shards no model; a fault in the data ends it before there is a folder.

    Of the processes that share an evaluation only the main one has a configuration, and sends it to the others.
    """
    from think_as_locals import demonstrate, edit, evaluate, sample
    from think_as_locals.evaluation.tasks import questions_of
    from think_as_locals.runtime.run_folder import RunFolder, lock_run_dir, open_run

    peers = Peers.join()
    if config is None:
        told: list[Any] = peers.exchange(None)
        values, path = told[0]
        run = RunFolder(Path(path))
        with warnings.catch_warnings(action="ignore", category=DataWarning):  # the main process gave them
            config = EvaluationConfig.model_validate(values)
            return partial(evaluate.run, config, evaluate.load_data(config), run, peers), run
    program: Callable[[RunFolder], None]
    if isinstance(config, DemonstrationConfig):
        program = partial(demonstrate.run, config, demonstrate.items_of(config))
    elif isinstance(config, EditConfig):
        program = partial(edit.run, config, edit.items_of(config))
    elif isinstance(config, SampleConfig):
        program = partial(sample.run, config, questions_of(config.sample, config.seed))
    else:
        program = partial(evaluate.run, config, evaluate.load_data(config), peers=peers)
    run = open_run(config)
    lock.enter_context(lock_run_dir(run.path))
    peers.exchange((config.model_dump(), str(run.path)))
    return partial(program, run), run


def load_data(config: GrpoConfig | ScpoConfig) -> Any:
    """Read a run's `TrainingData`, SCPO's `Splits` or `PolicyData`, and check that they have what its stages need."""
    from think_as_locals.data import read
    from think_as_locals.data.load import load_training_data
    from think_as_locals.evaluation.breakdowns import BREAKDOWNS

    if isinstance(config, ScpoConfig):
        return _split_people(config, read(config.data, config.seed))
    if isinstance(config, PolicyConfig):
        from think_as_locals import policy

        return policy.load_data(config)
    from think_as_locals.judging.custom_rewards import load_custom_rewards
    from think_as_locals.judging.rubric import check_languages

    load_custom_rewards(config.reward.own)
    data = load_training_data(config, BREAKDOWNS["cell"])
    if config.sft is not None and config.sft.data is not None:
        from think_as_locals.demonstrate import read_demonstrations
        from think_as_locals.judging import prompt_format

        demonstrations = read_demonstrations(config.sft.data, prompt_format(config.prompt.template))
        data = replace(data, demonstrations=demonstrations)
    if "rubric_quality" in config.reward.weighted() and config.prompt.rubric_language == "item":
        check_languages(data.train)
    return data


def _split_people(config: ScpoConfig, pairs: Sequence[Item]) -> Splits:
    from think_as_locals.data.rows import path_of
    from think_as_locals.data.sources.prism import released_test_people
    from think_as_locals.data.splits import split_people

    data, scpo, by_country = config.data, config.scpo, config.mode.split == "by_country"
    known = sorted({str(item.culture) for item in pairs})
    for key in ("country_filter_thresholds", "country_learning_rates"):
        if unknown := sorted(set(getattr(scpo, key)).difference(known)):
            expected = f"expected codes among those of the pairs: {', '.join(known)}"
            raise ConfigError(f"scpo.{key}: got {', '.join(unknown)}, {expected}")
    released = data.source == "prism" and not by_country
    test = released_test_people(path_of(data), data.test_share, config.seed) if released else None
    return split_people(pairs, data.test_share, config.seed, by_country=by_country, test=test)


def _open(config: GrpoConfig | ScpoConfig, lock: ExitStack) -> RunFolder:
    """Open and lock the folder of a run, after the last check."""
    from think_as_locals.judging.custom_rewards import keep_sources
    from think_as_locals.runtime.run_folder import lock_run_dir, open_run
    from think_as_locals.training.grpo import check_arguments

    check_arguments(config)
    run = open_run(config)
    lock.enter_context(lock_run_dir(run.path))
    if isinstance(config, RunConfig):
        keep_sources(config.reward.own, run.custom_rewards)
    return run


def _share(
    config: GrpoConfig | ScpoConfig | None, lock: ExitStack
) -> tuple[GrpoConfig | ScpoConfig | None, RunFolder | None]:
    """Join the processes of a launch, and send the main process's configuration and folder to all of them."""
    from accelerate.utils import broadcast_object_list

    from think_as_locals.runtime.ranks import join, set_rank_timeout
    from think_as_locals.runtime.run_folder import RunFolder

    join()
    box: list[Any] = [None, None]
    try:
        if config is not None:
            box = [config.model_dump(), str(_open(config, lock).path)]
    finally:
        broadcast_object_list(box)
    values, path = box
    if values is None:
        return None, None
    kind = ScpoConfig if "scpo" in values else PolicyConfig if "tasks" in values else RunConfig
    received = kind.model_validate(values)
    set_rank_timeout(received)
    return received, RunFolder(Path(path))

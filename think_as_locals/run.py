"""Start a recipe with its overrides in each process of a launch: training, evaluation, SCPO and the others."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from think_as_locals.config.checks import Config, load_config
from think_as_locals.config.compose import compose_recipe
from think_as_locals.config.model_schema import (
    DemonstrationConfig,
    EditConfig,
    EvaluationConfig,
    PolicyConfig,
    SampleConfig,
)
from think_as_locals.config.schema import RunConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.runtime.gpus import has_gpu, take_own_gpus
from think_as_locals.runtime.processes import interrupt, keep_freed_memory, loading, on_signals
from think_as_locals.runtime.ranks import Peers, take_up_launch
from think_as_locals.runtime.run_folder import RunFolder, lock_run_dir, open_run, resumable
from think_as_locals.types import ConfigError, DataWarning, Item

if TYPE_CHECKING:
    from think_as_locals.data.splits import Splits

TrainingConfig = RunConfig | PolicyConfig | ScpoConfig
"""What trains: its processes share one model."""


def start(recipe: str, overrides: Sequence[str]) -> RunFolder:
    """Run a recipe, and return the folder of the run; in a launch every process calls this.

    The main process alone composes the recipe, and sends it to the others, so that no two processes can differ.
    """
    with ExitStack() as lock:
        with loading():
            program, run = _prepare(recipe, overrides, lock)
        if not has_gpu():
            keep_freed_memory()
        with resumable(run.path), on_signals(interrupt):
            program()
    return run


def _prepare(recipe: str, overrides: Sequence[str], lock: ExitStack) -> tuple[Callable[[], None], RunFolder]:
    """Return the program of a recipe with all it needs (configuration, items), and the locked folder of the run."""
    config: TrainingConfig | None = None
    data = run = None
    settings = _composed(recipe, overrides) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else {}
    if "rms" in settings:
        take_own_gpus()
    if int(os.environ.get("RANK", "0")) > 0:
        if "rms" in settings:
            return _join_evaluation()
        take_up_launch(settings.get("run", {}).get("launch"))
    else:
        loaded = _load(recipe, overrides)
        if not isinstance(loaded, TrainingConfig):
            return _without_training(loaded, lock)
        data = load_data(loaded)
        config = _fitted(loaded, data, recipe, overrides)
    if "WORLD_SIZE" in os.environ:
        config, run = _share(config, lock)
    elif config is not None:
        run = _open(config, lock)
    if config is None or run is None:  # the main process says why
        raise SystemExit(2)
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # the main process has shown them
        data = data or load_data(config)
    return partial(_training(config), config, data, run), run


def _training(config: TrainingConfig) -> Callable[..., None]:
    if isinstance(config, ScpoConfig):
        from think_as_locals import steer

        return steer.run
    if isinstance(config, PolicyConfig):
        from think_as_locals import policy

        return policy.run
    from think_as_locals import train

    return train.run


def load_single(recipe: str, overrides: Sequence[str]) -> Config:
    """Load the configuration of one run; a ConfigError if the recipe is a sweep."""
    config = load_config(recipe, overrides)
    if isinstance(config, RunConfig) and config.variants:
        names = ", ".join(config.variants)
        raise ConfigError(f"{config.recipe} is a sweep over variants ({names}): tal run -m {recipe}")
    return config


def _load(recipe: str, overrides: Sequence[str]) -> Config:
    """Load the configuration in the main process, and check that machine and launch have what it needs."""
    from think_as_locals.machine.preflight import preflight

    config = load_single(recipe, overrides)
    if (launched := take_up_launch(config.run.launch)) is not None:
        print(launched)
    preflight(config, recipe, overrides)
    return config


def _composed(recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a recipe's settings, some of which a process needs before the main one can send them."""
    try:
        return compose_recipe(recipe, overrides)
    except ConfigError:  # the main process says what is wrong, and ends the others
        return {}


def load_data(config: TrainingConfig) -> Any:
    """Read a run's `TrainingData`, SCPO's `Splits` or `PolicyData`, and check that they have what its stages need."""
    from think_as_locals.data import read
    from think_as_locals.data.load import load_training_data
    from think_as_locals.evaluation.breakdowns import BREAKDOWNS

    if isinstance(config, ScpoConfig):
        return _split_people(config, read(config.data, config.seed))
    if isinstance(config, PolicyConfig):
        from think_as_locals import policy

        return policy.load_data(config)
    from think_as_locals.judging.rewards import load_custom_rewards
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


def _fitted(config: TrainingConfig, data: Any, recipe: str, overrides: Sequence[str]) -> TrainingConfig:
    """Return the configuration with what follows from data and GPU, after the check of what is measured."""
    from think_as_locals.data.load import check_leaks
    from think_as_locals.machine.memory import fitted, longest_answer, longest_sequence

    if isinstance(config, ScpoConfig):
        return config
    if isinstance(config, PolicyConfig):
        return fitted(config, partial(longest_answer, config, data.prompts), recipe, overrides)
    check_leaks(config, data)
    return fitted(config, partial(longest_sequence, config, data), recipe, overrides)


def _open(config: TrainingConfig, lock: ExitStack) -> RunFolder:
    """Open and lock the folder of a run, after the last check."""
    from think_as_locals.judging.rewards import keep_sources
    from think_as_locals.training.grpo import check_arguments

    check_arguments(config)
    run = open_run(config)
    lock.enter_context(lock_run_dir(run.path))
    if isinstance(config, RunConfig):
        keep_sources(config.reward.own, run.custom_rewards)
    return run


def _share(config: TrainingConfig | None, lock: ExitStack) -> tuple[TrainingConfig | None, RunFolder | None]:
    """Join the processes of a launch, and send the main process's configuration and folder to all of them."""
    from accelerate.utils import broadcast_object_list

    from think_as_locals.runtime.ranks import join, set_rank_timeout

    join()
    box: list[Any] = [None, None]
    try:
        if config is not None:
            box = [config, _open(config, lock)]
    finally:
        broadcast_object_list(box)
    received, run = box
    if received is not None:
        set_rank_timeout(received)
    return received, run


def _without_training(
    config: EvaluationConfig | DemonstrationConfig | SampleConfig | EditConfig, lock: ExitStack
) -> tuple[Callable[[], None], RunFolder]:
    """As `_prepare`, for what shards no model; a fault in the data ends it before there is a folder."""
    from think_as_locals import demonstrate, edit, evaluate
    from think_as_locals.evaluation.tasks import questions_of

    peers = Peers.join()
    program: Callable[[RunFolder], None]
    if isinstance(config, DemonstrationConfig):
        program = partial(demonstrate.run, config, demonstrate.items_of(config))
    elif isinstance(config, EditConfig):
        program = partial(edit.run, config, edit.items_of(config))
    elif isinstance(config, SampleConfig):
        program = partial(evaluate.sample, config, questions_of(config.sample, config.seed))
    else:
        program = partial(evaluate.run, config, evaluate.load_data(config), peers=peers)
    run = open_run(config)
    lock.enter_context(lock_run_dir(run.path))
    peers.exchange((config, run))
    return partial(program, run), run


def _join_evaluation() -> tuple[Callable[[], None], RunFolder]:
    """Return the program of another process of an evaluation, which the main one sends configuration and folder."""
    from think_as_locals import evaluate

    peers = Peers.join()
    received: list[Any] = peers.exchange(None)
    config, run = received[0]
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # the main process has shown them
        return partial(evaluate.run, config, evaluate.load_data(config), run, peers), run

"""Start or plan a recipe with its overrides: training, evaluation, SCPO and the others."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from think_as_locals.config.checks import Config, load_config
from think_as_locals.config.compose import compose_recipe
from think_as_locals.config.launch import read_launch
from think_as_locals.config.model_schema import DemonstrationConfig, EditConfig, EvaluationConfig, TrainingConfig
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.processes import interrupt, on_signals
from think_as_locals.runtime.ranks import apply_launch
from think_as_locals.runtime.run_folder import RunFolder, keep_digest, lock_run_dir, open_run, resumable, run_folder
from think_as_locals.types import ConfigError, DataError, DataWarning

if TYPE_CHECKING:
    from think_as_locals.data.load import TrainingData
    from think_as_locals.data.splits import Splits


class Program(NamedTuple):
    """The functions of a kind of recipe, as `module:name`: imported when they are called, since most need torch."""

    load: str  # config -> its data; a fault in them ends a run before it has a folder
    plan: str  # config, data -> what --dry-run says, in rows of a name and a text
    run: str  # config, data, folder


PROGRAMS: dict[type[Config], Program] = {
    RunConfig: Program("run:load_training", "train:plan", "train:run"),
    ScpoConfig: Program("run:load_pairs", "steer:plan", "steer:run"),
    EvaluationConfig: Program("evaluate:load_data", "evaluate:plan", "evaluate:run"),
    DemonstrationConfig: Program("demonstrate:load_data", "demonstrate:plan", "demonstrate:run"),
    EditConfig: Program("edit:load_data", "edit:plan", "edit:run"),
}


def _function(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = resolve_name(f"think_as_locals.{name}")
    return function


def start(recipe: str, overrides: Sequence[str]) -> RunFolder:
    """Run a recipe, and return the folder of the run; in a launch every process calls this.

    The main process alone composes the recipe, and sends it to the others, so that no two processes can differ.
    """
    with ExitStack() as lock:
        program, run = _prepare(recipe, overrides, lock)
        with resumable(run.path), on_signals(interrupt):
            program()
    return run


def plan(recipe: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return what a run would read, do and measure, and what this machine lacks for it; no model is loaded."""
    from think_as_locals.machine.doctor import missing_for

    config = load_single(recipe, overrides)
    run_folder(config)
    data = load_data(config)
    launch = read_launch(config.run.launch)
    _check(config, data, launch.processes)
    rows = _function(PROGRAMS[type(config)].plan)(config, data)
    if launch.processes > 1:
        rows = [
            ("processes", f"{launch.processes}, as run.launch={launch.name} says: start it with `tal launch`"),
            *rows,
        ]
    lacking = [("lacking here", fault) for fault in missing_for(config)]
    return [*rows, ("runs folder", config.run.dir), *lacking]


def _prepare(recipe: str, overrides: Sequence[str], lock: ExitStack) -> tuple[Callable[[], None], RunFolder]:
    """Return the program of a recipe with all it needs (configuration, data), and the locked folder of the run."""
    config: Config | None = None
    data: Any = None
    if int(os.environ.get("RANK", "0")) == 0:
        from think_as_locals.machine.doctor import preflight

        config = load_single(recipe, overrides)
        if (launched := apply_launch(config.run.launch)) is not None:
            print_result(launched)
        preflight(config)
        data = load_data(config)
    else:
        with suppress(ConfigError):  # the main process says what is wrong, and ends the others
            apply_launch(compose_recipe(recipe, overrides).get("run", {}).get("launch"))
    if config is None or ("WORLD_SIZE" in os.environ and isinstance(config, TrainingConfig)):
        config, run = _share(config, data, lock)
    else:
        run = _open(config, data, lock)
    if data is None:
        with warnings.catch_warnings(action="ignore", category=DataWarning):  # the main process has shown them
            data = load_data(config)
    return partial(_function(PROGRAMS[type(config)].run), config, data, run), run


def load_single(recipe: str, overrides: Sequence[str]) -> Config:
    """Load the configuration of one run; a ConfigError if the recipe is a sweep."""
    config = load_config(recipe, overrides)
    if isinstance(config, RunConfig) and config.variants:
        names = ", ".join(config.variants)
        raise ConfigError(f"{config.recipe} is a sweep over variants ({names}): tal run -m {recipe}")
    return config


def load_data(config: Config) -> Any:
    """Load the data of a run and check that they have what its stages need."""
    return _function(PROGRAMS[type(config)].load)(config)


def load_training(config: RunConfig) -> TrainingData:
    """Load the data of a judge's training, with its demonstrations if they are from a file."""
    from think_as_locals.data.load import load_training_data
    from think_as_locals.evaluation.breakdowns import BREAKDOWNS
    from think_as_locals.judging import prompt_format
    from think_as_locals.judging.rewards import try_custom_rewards
    from think_as_locals.judging.rubric import check_languages

    data = load_training_data(config, BREAKDOWNS["cell"])
    format_ = prompt_format(config.prompt.template)
    own = {name: path for name, path in config.reward.own.items() if name in config.reward.weighted()}
    try_custom_rewards(own, config.reward.timeout_s, format_, data.train[0])
    if config.sft is not None and config.sft.data is not None:
        from think_as_locals.demonstrate import read_demonstrations

        data = replace(data, demonstrations=read_demonstrations(config.sft.data, format_))
    if "rubric_quality" in config.reward.weighted() and config.prompt.rubric_language == "item":
        check_languages(data.train)
    return data


def load_pairs(config: ScpoConfig) -> Splits:
    """Load the pairs of an SCPO run, split by person or by country; of a global RM alone as a judge's items are."""
    from think_as_locals.data import load, read
    from think_as_locals.data.rows import path_of
    from think_as_locals.data.sources.prism import released_test_people
    from think_as_locals.data.splits import split_people

    data, by_country, faulty = config.data, config.mode.split == "by_country", list[str]()
    if not config.scpo.variants:
        found = load(data, config.seed, faulty)
        if odd := next((item for item in (*found.train, *found.test) if len(item.responses) != 2), None):
            raise DataError(f"item {odd.id!r} has {len(odd.responses)} responses, expected pairs: data.as_pairs=true")
        return replace(found, faulty=faulty)
    pairs = read(data, config.seed, faulty)
    released = data.source == "prism" and not by_country
    test = released_test_people(path_of(data), data.test_share, config.seed) if released else None
    split = split_people(pairs, data.test_share, config.seed, by_country=by_country, test=test)
    return replace(split, faulty=faulty)


def _check(config: Config, data: Any, processes: int | None = None) -> None:
    """Check a training's data and arguments for this many processes (`None`: those that have joined)."""
    if isinstance(config, RunConfig):
        from think_as_locals.data.load import check_leaks

        check_leaks(config, data)
    if isinstance(config, ScpoConfig) and not config.scpo.variants:
        from think_as_locals.data.overlap import check_overlaps, find_overlaps

        if message := check_overlaps(find_overlaps(data.train, {"test": data.test}), refuse=False):
            warnings.warn(message, DataWarning, stacklevel=2)
    if isinstance(config, TrainingConfig):
        from think_as_locals.training.grpo import check_arguments

        check_arguments(config, len(data.train), processes)


def _open(config: Config, data: Any, lock: ExitStack) -> RunFolder:
    """Open and lock the folder of a run, after the last check."""
    from think_as_locals.data.rows import path_of
    from think_as_locals.data.sources.globalopinionqa import read_questions
    from think_as_locals.judging.rewards import keep_sources

    _check(config, data)
    run = open_run(config)
    lock.enter_context(lock_run_dir(run.path))
    if isinstance(config, TrainingConfig):
        if isinstance(config, ScpoConfig):
            survey = config.data.source == "globalopinionqa"
            others = [data.test, read_questions(path_of(config.data)) if survey else []]  # shares, which no item holds
        else:
            others = [*(each.items for each in data.sets.values()), data.demonstrations]
        keep_digest(run.items_digest, chain(data.train, *others))
    if isinstance(config, EvaluationConfig):
        keep_digest(run.items_digest, chain(data.items, data.candidates, *(data.edits or {}).values(), data.questions))
    if isinstance(config, RunConfig):
        keep_sources(config.reward.own, run.custom_rewards)
    return run


def _share(config: Config | None, data: Any, lock: ExitStack) -> tuple[Config, RunFolder]:
    """Join the processes of a training, and send the main process's configuration and folder to all of them."""
    from accelerate.utils import broadcast_object_list

    from think_as_locals.runtime.ranks import join, set_rank_timeout

    join()
    box: list[Any] = [None]
    try:
        if config is not None:
            box = [(config, _open(config, data, lock))]
    finally:
        broadcast_object_list(box)
    if box[0] is None:  # the main process says why
        raise SystemExit(2)
    received, run = box[0]
    set_rank_timeout(received)
    return received, run

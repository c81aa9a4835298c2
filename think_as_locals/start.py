"""A recipe and its overrides -> a run, in each process of a launch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from think_as_locals.config import load_config
from think_as_locals.rm_schema import EvaluationConfig
from think_as_locals.schema import RunConfig
from think_as_locals.scpo_schema import ScpoConfig

if TYPE_CHECKING:
    from think_as_locals.data import Splits


def start(recipe: str, overrides: Sequence[str]) -> None:
    """Train, measure or steer, as a recipe says; one process of possibly several."""
    config: RunConfig | ScpoConfig | None = None
    splits, folder, lock = None, Path(), ExitStack()
    if int(os.environ.get("RANK", "0")) == 0:
        from think_as_locals.preflight import preflight

        loaded = load_config(recipe, overrides)
        preflight(loaded)
        if isinstance(loaded, EvaluationConfig):
            _evaluate(loaded)
            return
        config, splits = loaded, _splits(loaded)
    if "WORLD_SIZE" in os.environ:
        config, folder = _from_main_process(config, lock)
    elif config is not None:
        folder = _open(config, lock)
    if config is None:  # the main process says why
        raise SystemExit(2)
    splits = splits or _splits(config)
    with lock:
        if isinstance(config, ScpoConfig):
            from think_as_locals import steering

            steering.run(config, splits, folder)
        else:
            from think_as_locals import pipeline

            pipeline.run(config, splits, folder)


def _open(config: RunConfig | ScpoConfig, lock: ExitStack) -> Path:
    """The folder of a run that nothing speaks against any more, held by `lock`."""
    from think_as_locals.judging.own import keep_sources
    from think_as_locals.training.arguments import check_arguments
    from think_as_locals.workspace import alone, open_run

    check_arguments(config)
    folder = open_run(config)
    lock.enter_context(alone(folder))
    if isinstance(config, RunConfig):
        keep_sources(config.reward.own, folder / "rewards")
    return folder


def _splits(config: RunConfig | ScpoConfig) -> Splits:
    """What is learnt from and tested on, which has what the run needs.

    Raises:
        ConfigError: a reward of the user's own cannot be loaded.
        DataError: a fault in the data.
    """
    from think_as_locals.data import load, read
    from think_as_locals.data.people import split_people

    data = config.data
    if isinstance(config, ScpoConfig):
        by_country = config.mode.split == "by_country"
        return split_people(read(data, config.seed), data.test_share, config.seed, by_country=by_country)
    from think_as_locals.judging.own import load_own
    from think_as_locals.judging.rubric import check_languages
    from think_as_locals.training.demonstrations import check_origins

    load_own(config.reward.own)
    splits = load(data, config.seed)
    if config.sft is not None:
        check_origins(splits.train)
    if "rubric_quality" in config.reward.weighted():
        check_languages(config.reward.rubric_quality.language, splits.train)
    return splits


def _trained(values: dict[str, Any]) -> RunConfig | ScpoConfig:
    """What every rank is told, as a configuration again."""
    return ScpoConfig.model_validate(values) if "scpo" in values else RunConfig.model_validate(values)


def _evaluate(config: EvaluationConfig) -> None:
    """Measure reward models."""
    from think_as_locals import benchmark
    from think_as_locals.workspace import alone, open_run

    # A fault in the data ends the run before it has a folder.
    items, candidates = benchmark.items_of(config), benchmark.candidates_of(config)
    folder = open_run(config)
    with alone(folder):
        benchmark.run(config, items, candidates, folder)


def _from_main_process(
    config: RunConfig | ScpoConfig | None, lock: ExitStack
) -> tuple[RunConfig | ScpoConfig | None, Path]:
    """What the main process composed and opened: Hydra runs once, so that no two ranks can differ."""
    from accelerate.utils import broadcast_object_list

    from think_as_locals.workers import join, wait_for_ranks

    join()
    box: list[Any] = [None, None]
    try:
        if config is not None:
            folder = _open(config, lock)
            box = [config.model_dump(), str(folder)]
    finally:
        broadcast_object_list(box)
    if box[0] is None:
        return None, Path()
    config = _trained(box[0])
    wait_for_ranks(config)
    return config, Path(box[1])

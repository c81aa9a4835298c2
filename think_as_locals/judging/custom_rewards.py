"""Reward components from users, as `path/to/file.py:function` or `package.module:function`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from think_as_locals.judging.rewards import Component, Evidence
from think_as_locals.runtime.files import write_text
from think_as_locals.types import ConfigError, Item, Judgement

OwnReward = Callable[[Judgement, Item], float]
"""A function of a judgement and its item as presented."""


def load_custom_rewards(references: Mapping[str, str]) -> dict[str, Component]:
    """Import custom components by name, or raise a ConfigError; called in each process of a run."""

    def as_component(function: OwnReward) -> Component:
        def component(judgement: Judgement, presented: Item, evidence: Evidence) -> float:
            return function(judgement, presented)

        return component

    return {name: as_component(_load(name, reference)) for name, reference in references.items()}


def keep_sources(references: Mapping[str, str], folder: Path) -> None:
    """Copy the files of custom components to `folder/NAME.py`; raise a ConfigError if those of a resumed run differ."""
    for name, reference in references.items():
        kept = folder / f"{name}.py"
        source = Path(inspect.getfile(_load(name, reference))).read_text(encoding="utf-8")
        if not kept.is_file():
            folder.mkdir(exist_ok=True)
            write_text(kept, source)
        elif kept.read_text(encoding="utf-8") != source:
            raise ConfigError(
                f"reward.own.{name}: {reference} has changed since this run was started with {kept}: "
                "change it back to continue the run, or choose another run.name"
            )


@cache
def _load(name: str, reference: str) -> OwnReward:
    place, _, attribute = reference.rpartition(":")
    try:
        function = resolve_name(reference) if not place.endswith(".py") else _from_file(name, Path(place), attribute)
    except Exception as error:  # whatever the user's own code raises
        raise ConfigError(f"reward.own.{name}: {reference}: {type(error).__name__}: {error}") from error
    if not inspect.isfunction(function):
        raise ConfigError(f"reward.own.{name}: {reference}: expected a function, got {function!r}")
    try:
        inspect.signature(function).bind("judgement", "item")
    except TypeError as error:
        raise ConfigError(
            f"reward.own.{name}: expected a function of (judgement, item), "
            f"got {reference}{inspect.signature(function)}: {error}"
        ) from error
    return function


def _from_file(name: str, path: Path, attribute: str) -> Any:
    if not (file := path.expanduser()).is_file():
        raise FileNotFoundError(f"not found from {Path.cwd()}; start in the folder that the path is relative to")
    module_name = f"own_reward_{name}"
    spec = spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # where dataclasses look up the module of a class
    spec.loader.exec_module(module)
    if attribute not in vars(module):
        functions = [known for known, value in vars(module).items() if inspect.isfunction(value)]
        raise LookupError(f"no {attribute} in it; functions there: {', '.join(functions) or 'none'}")
    return vars(module)[attribute]

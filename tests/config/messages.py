"""Shared by configuration tests: recipe paths, and helpers that return error messages."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from think_as_locals.config.checks import load_config, validate
from think_as_locals.config.compose import ASSETS
from think_as_locals.types import ConfigError

GRPO, CARB, QUICKSTART, SCPO, PRISM, OPINIONS = (
    ASSETS / "recipes" / f"{name}.yaml"
    for name in ("tal_grpo", "carb", "quickstart", "scpo_quickstart", "scpo_prism", "scpo_globalopinionqa")
)
DEMONSTRATE, EDIT = (ASSETS / "conf" / f"{name}.yaml" for name in ("demonstrate", "edit"))
DOWNSTREAM = ASSETS / "recipes" / "downstream.yaml"
HEAD = "defaults:\n  - /config\n  - override /model: qwen2_5_7b\n  - _self_\n"


def a_recipe(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path | str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


@cache
def values_of(recipe: Path, *overrides: str) -> dict[str, Any]:
    return load_config(recipe, ["run.name=whole", *overrides]).model_dump()


def faults(changes: Mapping[str, Any], recipe: Path = QUICKSTART, *overrides: str) -> str:
    """The message about a recipe's configuration with some keys set to something else."""
    values = copy.deepcopy(values_of(recipe, *overrides))
    for key, value in changes.items():
        *path, last = key.split(".")
        reduce(getitem, path, values)[last] = value
    with pytest.raises(ConfigError) as caught:
        validate(values)
    return str(caught.value)

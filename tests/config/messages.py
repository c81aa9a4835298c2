"""What several tests of the configuration share: the recipes, and the messages of what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from think_as_locals.config.checks import load_config
from think_as_locals.config.compose import ASSETS
from think_as_locals.types import ConfigError

GRPO, CARB, QUICKSTART, SCPO, PRISM, OPINIONS = (
    ASSETS / "recipes" / f"{name}.yaml"
    for name in ("tal_grpo", "carb", "quickstart", "scpo_quickstart", "scpo_prism", "scpo_globalopinionqa")
)
HEAD = "defaults:\n  - /config\n  - override /model: qwen2_5_7b\n  - _self_\n"


def a_recipe(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path | str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)

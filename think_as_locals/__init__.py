"""Train generative reward models: LLM judges that reason like locals.

These names are the stable API. Importing them needs no torch: those in `_LAZY` load what they need on first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from think_as_locals.judging import Evidence, parse, render, score, shuffle_responses
from think_as_locals.types import (
    ConfigError,
    Criterion,
    DataError,
    Item,
    Judgement,
    ModelError,
    PreflightError,
    RewardBreakdown,
    Rubric,
    ThinkAsLocalsError,
    TrainingError,
)

if TYPE_CHECKING:
    from think_as_locals.config.checks import load_recipe
    from think_as_locals.reward_models.group import GroupReward
    from think_as_locals.reward_models.judge import Judge
    from think_as_locals.reward_models.scalar import ScalarRM

__version__ = version("think-as-locals")

__all__ = [
    "ConfigError",
    "Criterion",
    "DataError",
    "Evidence",
    "GroupReward",
    "Item",
    "Judge",
    "Judgement",
    "ModelError",
    "PreflightError",
    "RewardBreakdown",
    "Rubric",
    "ScalarRM",
    "ThinkAsLocalsError",
    "TrainingError",
    "load_recipe",
    "parse",
    "render",
    "score",
    "shuffle_responses",
]

_LAZY = {
    "GroupReward": "think_as_locals.reward_models.group",
    "Judge": "think_as_locals.reward_models.judge",
    "ScalarRM": "think_as_locals.reward_models.scalar",
    "load_recipe": "think_as_locals.config.checks",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return vars(import_module(_LAZY[name]))[name]
        except ModuleNotFoundError as error:
            error.add_note("pip install 'think-as-locals[train]', or [client] for a judge behind a server")
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; available: {', '.join(__all__)}")

"""Verifiable rewards: pure functions of a judgement and the item as it was shown.

A policy's fault (a text that cannot be parsed, a completion cut off) is a penalty, never an excuse: no component
abstains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType

from think_as_locals.judging.grammar import RULES
from think_as_locals.judging.present import present
from think_as_locals.types import Item, Judgement, RewardBreakdown, ThinkAsLocalsError


class UnknownRewardError(ThinkAsLocalsError, LookupError):
    """No reward component of that name."""


def correctness(judgement: Judgement, shown: Item) -> float:
    """+1 where the verdict is the best response, else -1; no verdict is -1 (R_corr of arXiv 2509.21798).

    Range: {-1, 1}.
    """
    return 1.0 if judgement.verdict == shown.best else -1.0


def structure(judgement: Judgement, shown: Item) -> float:
    """Share of the grammar's rules that the completion keeps. Ours.

    Range: [0, 1]; 1 exactly where the parser finds no issue.
    """
    return 1.0 - len(judgement.issues) / len(RULES)


COMPONENTS: MappingProxyType[str, Callable[[Judgement, Item], float]] = MappingProxyType(
    {"correctness": correctness, "structure": structure}
)


def score(
    judgement: Judgement, item: Item, seed: int = 0, components: Iterable[str] = tuple(COMPONENTS)
) -> RewardBreakdown:
    """Score a judgement of an item.

    Args:
        judgement: As parsed from a completion of `render(item, seed=seed)`.
        item: The item as its source gave it.
        seed: The seed it was rendered with.
        components: Which parts to compute.

    Raises:
        UnknownRewardError: the message lists the components there are.

    Example:
        >>> from think_as_locals.judging.parse import parse
        >>> item = Item(id="1", prompt="?", responses=("x", "y"), best=0, culture="TH", language="en",
        ...             domain="value", group="g", source="mine")
        >>> dict(score(parse("nonsense", 2), item, components=["correctness"]).parts)
        {'correctness': -1.0}
    """
    shown = present(item, seed)
    return RewardBreakdown({name: _component(name)(judgement, shown) for name in components})


def _component(name: str) -> Callable[[Judgement, Item], float]:
    if name not in COMPONENTS:
        raise UnknownRewardError(f"no reward component {name!r}; available: {', '.join(COMPONENTS)}")
    return COMPONENTS[name]

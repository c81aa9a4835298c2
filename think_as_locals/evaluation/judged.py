"""Items with what their judgements are worth, and the ways in which they are broken down."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from think_as_locals.data import flip_sets
from think_as_locals.evaluation.languages import describe
from think_as_locals.models.prediction import Prediction
from think_as_locals.types import DataError, Item

Outcome = Literal["right", "tie", "wrong", "unparsable"]
"""Of a judgement: a tie is one that shares the highest score between the best response and others."""

Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class JudgedItem:
    """An item and its credit.

    Args:
        item: The item.
        credit: In [0, 1]: 1 right, 0 wrong or unparsable, 1/k for a tie of k; of an item that was judged in several
            orders the mean over them.
    """

    item: Item
    credit: float


BREAKDOWNS: Mapping[str, Callable[[Item], str]] = MappingProxyType(
    {
        "culture": lambda item: item.culture or "none",
        "domain": lambda item: item.domain,
        "language": lambda item: item.language,
        "cell": lambda item: f"{item.culture or 'none'}/{item.domain}",
        "resource_class": lambda item: describe(item.language).resource_class,
        "family": lambda item: describe(item.language).family,
        "script": lambda item: describe(item.language).script,
    }
)
"""What an item is counted under, by name; class, family and script are those of its language."""


def judged_items(predictions: Sequence[Prediction]) -> list[JudgedItem]:
    """The items of predictions, each once, in the order of their first judgements."""
    return [
        JudgedItem(judgements[0].item, math.fsum(p.credit for p in judgements) / len(judgements))
        for judgements in grouped(predictions, lambda p: p.item.id).values()
    ]


def judged_flip_sets(judged: Sequence[JudgedItem]) -> list[list[JudgedItem]]:
    """Those that make whole flip sets, set by set."""
    by_id = {j.item.id: j for j in judged}
    return [[by_id[item.id] for item in members] for members in flip_sets([j.item for j in judged])]


def outcome(row: Mapping[str, Any]) -> Outcome:
    """What became of a judgement, from its `Prediction.row()`.

    Example:
        >>> outcome({"verdict": None, "issues": [], "credit": 0.5})
        'tie'
    """
    if row["verdict"] is None and row["issues"]:
        return "unparsable"
    return "right" if row["credit"] == 1 else "tie" if row["credit"] > 0 else "wrong"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A table of judgements, `Prediction.row()` each.

    Raises:
        DataError: the file is not there or cannot be read.
    """
    import pyarrow.parquet

    if not path.is_file():
        there = "no such file; expected the folder of a run, or a carb/NAME.parquet"
        raise DataError(f"{path}: not a readable table of judgements: {there}")
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable table of judgements: {error}") from error
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        DataError: the file cannot be read or holds something else; the message names it.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Things by their key, in the order in which they come."""
    parts: dict[Key, list[Thing]] = defaultdict(list)
    for thing in things:
        parts[key(thing)].append(thing)
    return dict(parts)

"""Demonstrations in a file: what a teacher wrote about items, with its provenance, as `sft.data` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from think_as_locals.data.rows import Row, read_rows, valid_items
from think_as_locals.data.sources import jsonl
from think_as_locals.judging.formats import Format
from think_as_locals.types import LABELS, DataError, Demonstration, is_text

_FIELDS = "item (an object with the fields of Item), order, completion"


def read_demonstrations(path: str, format_: Format) -> tuple[Demonstration, ...]:
    """Read the demonstrations of a file, whatever else its rows say of where they come from.

    Args:
        path: JSONL, one object a line with `item` (the fields of `Item`), `order` (indices of its responses as they
            were presented) and `completion`.
        format_: The format that the completions are to teach.

    Raises:
        DataError: there are none, or one is not in this format or not right; the message names file and row.
    """
    found = tuple(_demonstration(row, format_) for row in read_rows(str(Path(path).expanduser())))
    if not found:
        raise DataError(f"{path}: no demonstrations; expected rows with {_FIELDS}")
    return found


def _demonstration(row: Row, format_: Format) -> Demonstration:
    if row.fault or not isinstance(row.value, Mapping):
        got = row.fault.detail if row.fault else f"got {type(row.value).__name__}"
        raise DataError(f"{row.place}: {got}; expected a demonstration: {_FIELDS}")
    (item,) = valid_items([jsonl.outcome(replace(row, value=row.value.get("item")))])
    order, completion = row.value.get("order"), row.value.get("completion")
    places = list(range(len(item.responses)))
    if not isinstance(order, list) or any(type(place) is not int for place in order) or sorted(order) != places:
        raise DataError(f"{row.place}: order must have each of {places} once, got {order!r}")
    if not is_text(completion):
        raise DataError(f"{row.place}: completion must be a non-blank string, got {completion!r}")
    judgement = format_.read(str(completion), len(order), "stop")
    if judgement.issues:
        broken = f"breaks the format that it is to teach: {', '.join(judgement.issues)}"
        raise DataError(f"{row.place}: the completion {broken}; leave it out, or choose the prompt it was written for")
    if judgement.verdict != order.index(item.best):
        labels = [LABELS[i] for i in (judgement.verdict or 0, order.index(item.best))]
        raise DataError(f"{row.place}: the completion chooses {labels[0]}, but {labels[1]} is the best: leave it out")
    return Demonstration(item, tuple(order), str(completion))

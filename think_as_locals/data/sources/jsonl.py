"""Our own rows: one JSON object per line, with the fields of `Item`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from think_as_locals.data.fields import Text, best_first
from think_as_locals.data.languages import culture_fault
from think_as_locals.data.rows import Fault, Outcome, Row, mark_repeats, read_rows, valid_items
from think_as_locals.runtime.files import json_line, write_rows
from think_as_locals.types import DataError, Item, join_turns

FIELDS = tuple(field.name for field in dataclasses.fields(Item) if field.default is dataclasses.MISSING)
"""The columns by which rows are recognised."""

PLACEHOLDERS: dict[str, Any] = {"best": 0, "domain": "any", "group": "any", "source": "any"}
"""Values for the fields of an item that no reward model sees, for rows that are only judged."""


class _ItemRow(BaseModel):
    """The fields of `Item`; `Item` itself checks what concerns several of them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Text
    prompt: Text
    responses: list[Text]
    best: int
    culture: Text | None
    language: Text
    domain: Text
    group: Text
    source: Text
    origins: list[Text] = []
    turns: list[Annotated[tuple[Literal["system", "user", "assistant"], str], Field(strict=False)]] = []


def read(path: Path) -> Iterator[Item]:
    """Yield the items of a JSONL file; raise a `DataError`, `file:line: what is wrong`, at the first bad row."""
    return valid_items(mark_repeats(Outcome.of(row, items) for row in read_rows(str(path))))


def items(row: Row) -> Iterator[Item | Fault]:
    """Yield the item of a row."""
    item = None
    if isinstance(row.value, dict) and isinstance(row.value.get("responses"), list):
        # Most rows are valid, and `Item` checks them in a fifth of the time.
        with suppress(DataError, TypeError):
            item = None if "turns" in row.value else Item(**row.value)
    if item is None:
        fields = _ItemRow.model_validate(row.value).model_dump()
        responses, best = fields.pop("responses"), fields.pop("best")
        wrong = [text for i, text in enumerate(responses) if i != best]
        if 0 <= best < len(responses) and len({*wrong}) < len(wrong) and not fields["origins"]:
            item = best_first(responses[best], wrong, **fields)
        else:
            item = Item(responses=responses, best=best, **fields)
    if item.culture and (fault := culture_fault(item.culture)):
        yield Fault("unknown_culture", f"culture {item.culture!r}: {fault}")
    if item.turns and join_turns(item.turns) != item.prompt:
        yield Fault("turns", "prompt is not the text of its turns (`role: content`, an empty line between)")
    yield item


def query_items(row: Row, defaults: Mapping[str, Any]) -> Iterator[Item | Fault]:
    """Yield the item of a row to be judged: only prompt, responses and culture are required."""
    if isinstance(row.value, Mapping):
        given = {name: value for name, value in row.value.items() if value is not None or name == "culture"}
        needed = {"id": row.name, "language": "und", **PLACEHOLDERS, **defaults}
        row = row._replace(value=needed | given)
    return items(row)


def query_item(value: Mapping[str, Any], number: int = 1, place: str = "items") -> Item:
    """Return the item of a caller's row to be judged; raise a `DataError` that names its place."""
    outcome = Outcome.of(Row(place, number, value, ""), partial(query_items, defaults={}))
    outcome.raise_errors()
    return outcome.items[0]


def write(items: Iterable[Item], path: Path) -> int:
    """Write items to a new file, as a whole or not at all, and return their number."""
    return write_rows(path, map(dataclasses.asdict, items))


def line(item: Item) -> str:
    """Return an item as a line of JSON."""
    return json_line(dataclasses.asdict(item))

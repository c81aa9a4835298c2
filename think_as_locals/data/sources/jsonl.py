"""Our own rows: one JSON object per line, with the fields of `Item`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from think_as_locals.data.fields import Text, Turn
from think_as_locals.data.languages import culture_fault, language_tag, named_culture
from think_as_locals.data.rows import Fault, Outcome, Row, mark_repeats, read_rows, unpack, valid_items
from think_as_locals.runtime.files import write_rows
from think_as_locals.types import LABELS, DataError, Item, join_turns

FIELDS = tuple(field.name for field in dataclasses.fields(Item) if field.default is dataclasses.MISSING)
"""The columns by which rows are recognised."""

IN_COLUMNS = tuple(f"response_{letter}" for letter in LABELS.lower())
"""The usual columns of responses, if each has its own."""

UNSEEN: dict[str, Any] = {"best": 0, "domain": "any", "group": "any", "source": "any"}
"""Values for the fields of an item that no reward model sees, for rows that are only judged."""


class _InMessages(BaseModel):
    prompt: Annotated[list[Turn], Field(min_length=1)]


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


def items(row: Row, merge: bool = True) -> Iterator[Item | Fault]:
    """Yield the item of a row; worse responses of the same text are one, unless the indices of all matter."""
    item = None
    if isinstance(row.value, dict) and isinstance(row.value.get("responses"), list):
        # Most rows are valid, and `Item` checks them in a fifth of the time.
        with suppress(DataError, TypeError):
            item = None if "turns" in row.value else Item(**row.value)
    if item is None:
        fields = _ItemRow.model_validate(row.value).model_dump()
        if fields["turns"] and join_turns(fields["turns"]) != fields["prompt"]:
            yield Fault("turns", "prompt is not the text of its turns (`role: content`, an empty line between)")
        item = Item(**(_without_repeats(fields) if merge else fields))
    culture = item.culture and named_culture(item.culture)
    if culture and (fault := culture_fault(culture)):
        yield Fault("unknown_culture", f"culture {culture!r}: {fault}")
    if (tag := language_tag(item.language)) is None:
        yield Fault("unknown_language", f"language: got {item.language!r}, expected an English name or a BCP-47 tag")
    is_read = culture == item.culture and tag in (item.language, None)
    yield item if is_read else dataclasses.replace(item, culture=culture, language=tag or item.language)


def _without_repeats(fields: dict[str, Any]) -> dict[str, Any]:
    texts, origins, best = fields["responses"], fields["origins"], fields["best"]
    right = texts[best] if 0 <= best < len(texts) else None
    kept = [i for i, text in enumerate(texts) if text == right or text not in texts[:i]]
    if right is None or len(kept) == len(texts) or len(origins) not in (0, len(texts)):
        return fields
    parts = {name: [fields[name][i] for i in kept] for name in ("responses", "origins") if fields[name]}
    return {**fields, **parts, "best": kept.index(best)}


def query_items(row: Row, defaults: Mapping[str, Any], is_strict: bool = True) -> Iterator[Item | Fault]:
    """Yield the item of a row to be judged: only prompt, responses (or `response_a`, ...) and culture are required.

    Other keys are a fault, or if it is not strict, left out unless only their case is another; so is any `best`.
    """
    if isinstance(row.value, Mapping):
        given = {n: value for n, value in row.value.items() if value is not None or n in ("culture", "country")}
        if "country" in given:
            given.setdefault("culture", given.pop("country"))
        if "responses" not in given and (names := [name for name in IN_COLUMNS if name in given]):
            if empty := [name for name in IN_COLUMNS[: len(names)] if name not in names]:
                yield Fault("missing", f"{empty[0]} is empty, but {names[-1]} is not: expected the first ones")
            given["responses"] = [given.pop(name) for name in names]
        given["responses"] = unpack(given.get("responses"))
        if isinstance(given.get("prompt"), list):
            turns = [(turn.role, turn.content) for turn in _InMessages.model_validate(given).prompt]
            given |= {"prompt": join_turns(turns), "turns": turns if len(turns) > 1 else []}
        needed = {"id": row.name, "language": "und", **UNSEEN, **defaults}
        fields = {*_ItemRow.model_fields, *IN_COLUMNS, "country"}
        others = set() if is_strict else {n for n in given if n == "best" or n.casefold() not in fields}
        row = row._replace(value=needed | {name: value for name, value in given.items() if name not in others})
    yield from items(row, merge=False)


def query_item(value: Mapping[str, Any], number: int = 1, place: str = "items") -> Item:
    """Return the item of a caller's row to be judged; raise a `DataError` that names its place."""
    return next(valid_items([Outcome.of(Row(place, number, value, ""), partial(query_items, defaults={}))]))


def write(items: Iterable[Item], path: Path) -> int:
    """Write items to a new file, as a whole or not at all, and return their number."""
    return write_rows(path, map(fields, items))


def fields(item: Item) -> dict[str, Any]:
    """Return an item as a row."""
    row = dataclasses.asdict(item)
    return row if item.turns else {name: value for name, value in row.items() if name != "turns"}

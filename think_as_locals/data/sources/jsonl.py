"""Our own rows: one JSON object per line, with the fields of `Item`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from think_as_locals.data.fields import Prompt, RowModel, Text, check_culture, check_texts
from think_as_locals.data.languages import culture_fault
from think_as_locals.data.rows import Defect, Outcome, Row, mark_repeats, read_rows, valid_items
from think_as_locals.runtime.files import json_line, write_rows
from think_as_locals.types import ITEM_FIELDS, DataError, Item, shown

REQUIRED = tuple(field.name for field in dataclasses.fields(Item) if field.default is dataclasses.MISSING)


PLACEHOLDERS: dict[str, Any] = {"best": 0, "domain": "any", "group": "any", "source": "any"}
"""Values for the fields of an item that no reward model sees, for rows that are only judged."""


class ItemRow(RowModel):
    """The fields of `Item`, of which only `origins` may be missing."""

    FIELDS: ClassVar = ITEM_FIELDS
    EXACT: ClassVar = True

    domain: Text
    group: Text
    id: Text
    language: Text
    source: Text
    prompt: Prompt
    culture: Any
    responses: Any
    best: Any
    origins: Any = None


def read(path: Path) -> Iterator[Item]:
    """Yield the items of a JSONL file; raise a `DataError`, `file:line: what is wrong`, at the first bad row."""
    return valid_items(mark_repeats(map(outcome, read_rows(str(path)))))


def query_outcome(row: Row) -> Outcome:
    """Read a row to be judged as an item: only prompt, responses and culture are required."""
    if not isinstance(row.value, Mapping):
        return outcome(row)
    given = {name: value for name, value in row.value.items() if value is not None or name == "culture"}
    needed = {"id": row.name, "language": "und", **PLACEHOLDERS, **(row.defaults or {})}
    return outcome(row._replace(value=needed | given))


def outcome(row: Row) -> Outcome:
    """Read a row as an item."""
    if isinstance(row.value, dict) and isinstance(row.value.get("responses"), list):
        # Most rows are valid, and `Item` checks them in a fifth of the time; `ItemRow` names the faults of the others.
        with suppress(DataError, TypeError):
            item = Item(**row.value)
            if isinstance(row.value.get("origins", []), list) and not (item.culture and culture_fault(item.culture)):
                return Outcome(row, (item,))
    fields = ItemRow.read(row)
    if not isinstance(row.value, Mapping):
        return fields.outcome()
    if isinstance(fields.culture, str):
        check_culture("culture", fields.culture, fields.faults)
    elif fields.culture is not None:
        fields.add(Defect.WRONG_TYPE, f"culture must be a non-blank string or None, got {shown(fields.culture)}")
    responses, origins, best = (row.value.get(name, []) for name in ("responses", "origins", "best"))
    if not isinstance(responses, list) or not isinstance(origins, list):
        fields.add(Defect.WRONG_TYPE, "responses and origins must be lists")
        return fields.outcome()
    count = len(responses)
    if "responses" in row.value:
        texts = check_texts("responses", responses, fields.faults)
        fields.check_count(texts)
        fields.check_distinct(texts)
    if "best" in row.value and (isinstance(best, bool) or not isinstance(best, int) or not 0 <= best < count):
        fields.add(Defect.BAD_BEST, f"best must be an index from 0 to {count - 1}, got {shown(best)}")
    if origins and len(check_texts("origins", origins, fields.faults)) != count:
        message = f"origins must be empty or name a culture per response: got {len(origins)} for {count}"
        fields.add(Defect.WRONG_COUNT, message)
    return fields.outcome(*([] if fields.faults else [Item(**row.value)]))


def write(items: Iterable[Item], path: Path) -> int:
    """Write items to a new file, as a whole or not at all, and return their number."""
    return write_rows(path, map(dataclasses.asdict, items))


def line(item: Item) -> str:
    """Return an item as a line of JSON."""
    return json_line(dataclasses.asdict(item))

"""Our own rows: one JSON object per line, with the fields of `Item`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TextIO

from think_as_locals.data.fields import Prompt, RowModel, Text, check_culture, check_texts
from think_as_locals.data.languages import culture_fault
from think_as_locals.data.rows import Defect, Outcome, Row, mark_repeats, read_rows, valid_items
from think_as_locals.types import DataError, Item, shown

REQUIRED = tuple(field.name for field in dataclasses.fields(Item) if field.default is dataclasses.MISSING)


UNREAD: dict[str, Any] = {"best": 0, "domain": "any", "group": "any", "source": "any"}
"""For fields of an item that no reward model is told, where an item is judged and not trained on."""


class ItemRow(RowModel):
    """The fields of `Item`, no more, and no fewer but for `origins`."""

    FIELDS: ClassVar = tuple(field.name for field in dataclasses.fields(Item))
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
    """Yield the items of a JSONL file; raise a `DataError` at the first bad row, `file:line: what is wrong`."""
    return valid_items(mark_repeats(map(outcome, read_rows(str(path)))))


def asked(row: Row) -> Outcome:
    """Return the item that a row asks a judge about: only prompt, responses and culture have to be there."""
    if not isinstance(row.value, Mapping):
        return outcome(row)
    given = {name: value for name, value in row.value.items() if value is not None or name == "culture"}
    needed = {"id": row.name, "language": "und", **UNREAD, **row.defaults}
    return outcome(dataclasses.replace(row, value=needed | given))


def outcome(row: Row) -> Outcome:
    """Return the item that a row is."""
    if isinstance(row.value, dict) and isinstance(row.value.get("responses"), list):
        # Most rows are sound, and an item checks itself in a fifth of the time; `ItemRow` names the faults of the rest.
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
    """Write items to a new file, all or nothing, and return how many."""
    count = 0
    with new_file(path) as file:
        for count, item in enumerate(items, 1):  # noqa: B007
            file.write(line(item))
    return count


def line(item: Item) -> str:
    """Return an item as a line of a file."""
    return json.dumps(dataclasses.asdict(item), ensure_ascii=False) + "\n"


@contextmanager
def new_file(path: Path, *, keep_empty: bool = True) -> Iterator[TextIO]:
    """Open a file that appears as a whole at the end, or not at all.

    Raises:
        DataError: the file exists, cannot be written, or is named like another kind of file.
    """
    exists = DataError(f"{path} already exists; choose another name or move it away")
    if path.suffix.lower() in (".gz", ".json", ".parquet", ".csv"):
        raise DataError(f"{path}: one JSON object a line is written: expected a name such as {path.stem}.jsonl")
    try:
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        lines = partial.open("w", encoding="utf-8")  # replaces what a killed process with the same id left
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
    try:
        with lines as file:
            if path.exists():
                raise exists
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not keep_empty and not partial.stat().st_size:
            return
        try:
            path.touch(exist_ok=False)  # claims the name, so that the rename overwrites nothing written meanwhile
        except FileExistsError as error:
            raise exists from error
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

"""Our own rows: one JSON object a line, with the fields of `Item`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, listed, shown
from think_as_locals.data.outcomes import Outcome, mark_repeats, sound_items
from think_as_locals.data.rows import Row, read_rows
from think_as_locals.types import DataError, Item

FIELDS = tuple(field.name for field in dataclasses.fields(Item))
REQUIRED = tuple(field.name for field in dataclasses.fields(Item) if field.default is dataclasses.MISSING)


def read(path: Path) -> Iterator[Item]:
    """Items of a JSONL file.

    Raises:
        DataError: the first bad row, as `file:line: what is wrong`; or a repeated id.
    """
    return sound_items(mark_repeats(map(outcome, read_rows(str(path)))))


def outcome(row: Row) -> Outcome:
    """The item that a row is: it has the fields of `Item`, no more, and no fewer but for `origins`."""
    fields = Fields(row, FIELDS)
    if not fields.readable:
        return fields.outcome()
    given = set(row.value)
    if missing := sorted(set(REQUIRED) - given):
        fields.add(Defect.MISSING_FIELD, f"missing {', '.join(missing)}; fields: {', '.join(FIELDS)}")
    if unknown := sorted(given - set(FIELDS)):
        fields.add(Defect.UNKNOWN_FIELD, f"unknown {listed(unknown)}; fields: {', '.join(FIELDS)}")
    for name in sorted(given & {"id", "language", "domain", "group", "source"}):
        fields.text(name)
    if "prompt" in given:
        fields.text("prompt", Defect.EMPTY_PROMPT)
    if isinstance(culture := row.value.get("culture"), str):
        fields.text("culture")
    elif culture is not None:
        fields.add(Defect.WRONG_TYPE, f"culture must be a non-blank string or None, got {shown(culture)}")
    _check_responses(fields, row)
    return fields.outcome(*([] if fields.faults else [Item(**row.value)]))


def _check_responses(fields: Fields, row: Row) -> None:
    responses, origins, best = (row.value.get(name, []) for name in ("responses", "origins", "best"))
    if not isinstance(responses, list) or not isinstance(origins, list):
        fields.add(Defect.WRONG_TYPE, "responses and origins must be lists")
        return
    count = len(responses)
    if "responses" in row.value:
        texts = fields.texts("responses")
        fields.check_count(texts)
        fields.check_distinct(texts)
    if "best" in row.value and (isinstance(best, bool) or not isinstance(best, int) or not 0 <= best < count):
        fields.add(Defect.BAD_BEST, f"best must be an index from 0 to {count - 1}, got {shown(best)}")
    if origins and len(fields.texts("origins")) != count:
        said = f"origins must be empty or name a culture per response: got {len(origins)} for {count}"
        fields.add(Defect.WRONG_COUNT, said)


def write(items: Iterable[Item], path: Path) -> int:
    """Write items, all or nothing; returns how many.

    Raises:
        DataError: the file is there already.
    """
    count = 0
    with new_file(path) as file:
        for count, item in enumerate(items, 1):  # noqa: B007
            file.write(line(item))
    return count


def line(item: Item) -> str:
    """An item as a line of a file."""
    return json.dumps(dataclasses.asdict(item), ensure_ascii=False) + "\n"


@contextmanager
def new_file(path: Path, *, keep_empty: bool = True) -> Iterator[TextIO]:
    """A file to write to, which is there as a whole in the end, or not at all.

    Raises:
        DataError: it is there already, cannot be written there, or has the name of another kind of file.
    """
    there = f"{path} is there already; give another name or move it away"
    if path.suffix.lower() in (".gz", ".json", ".parquet", ".csv"):
        raise DataError(f"{path}: one JSON object a line is written: expected a name such as {path.stem}.jsonl")
    try:
        if path.exists():
            raise DataError(there)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        lines = beside.open("w", encoding="utf-8")  # over what a killed process of the same number left
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
    try:
        with lines as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not keep_empty and not beside.stat().st_size:
            return
        try:
            path.touch(exist_ok=False)  # the name is ours: the rename replaces nothing somebody else wrote meanwhile
        except FileExistsError as error:
            raise DataError(there) from error
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)

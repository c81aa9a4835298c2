"""Our own rows: one JSON object a line, with the fields of `Item`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from think_as_locals.types import DataError, Item

_FIELDS = {field.name: field for field in dataclasses.fields(Item)}
_REQUIRED = {name for name, field in _FIELDS.items() if field.default is dataclasses.MISSING}


def read(path: Path) -> Iterator[Item]:
    """Items of a JSONL file.

    Raises:
        DataError: the first bad row, as `file:line: what is wrong`; or a repeated id.
    """
    seen: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    item = _item(line, f"{path}:{number}")
                    if item.id in seen:
                        raise DataError(f"{path}:{number}: id {item.id!r} stands already in line {seen[item.id]}")
                    seen[item.id] = number
                    yield item
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); data.path must name a file of items") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: {error}") from error


def write(items: Iterable[Item], path: Path) -> int:
    """Write items, all or nothing; returns how many.

    Raises:
        DataError: the file is there already.
    """
    if path.exists():
        raise DataError(f"{path} is there already; give another name or move it away")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            count = 0
            for count, item in enumerate(items, 1):  # noqa: B007
                file.write(json.dumps(dataclasses.asdict(item), ensure_ascii=False) + "\n")
        try:
            path.touch(exist_ok=False)  # the name is ours: the rename replaces nothing somebody else wrote meanwhile
        except FileExistsError as error:
            raise DataError(f"{path} is there already; give another name or move it away") from error
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return count


def _item(line: str, place: str) -> Item:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected an object with the fields {', '.join(_FIELDS)}; got {type(row).__name__}")
    missing, unknown = sorted(_REQUIRED - set(row)), sorted(set(row) - set(_FIELDS))
    if missing or unknown:
        faults = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
        raise DataError(f"{place}: {'; '.join(faults)}; fields: {', '.join(_FIELDS)}")
    if not all(isinstance(row.get(name, []), list) for name in ("responses", "origins")):
        raise DataError(f"{place}: responses and origins must be lists")
    try:
        return Item(**row)
    except DataError as error:
        raise DataError(f"{place}: {error}") from error

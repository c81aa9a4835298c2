"""Tables of rows as files of every kind, as other people's data comes."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from think_as_locals.data.rows import Outcome, Row

KINDS = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".csv")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a file of the kind that its name says; in CSV an object is a cell of JSON, null an empty one."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.endswith(".jsonl"):
        path.write_text(lines, encoding="utf-8")
    elif path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.name.endswith(".json"):
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return path


def a_row(value: Any, number: int = 7) -> Row:
    """A row as it would be read from a file."""
    return Row("/some/where/rows.jsonl", number, value, json.dumps(value))


def defects(outcome: Outcome) -> list[str]:
    """The names of a row's faults, in order."""
    return [str(fault.defect) for fault in outcome.faults]


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value

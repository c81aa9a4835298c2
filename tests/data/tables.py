"""Rows written as files of every supported type, as in third-party data sets."""

from __future__ import annotations

import csv
import gzip
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from think_as_locals.config.checks import load_data_config
from think_as_locals.config.schema import DataSection
from think_as_locals.data.rows import Outcome, Row
from think_as_locals.data.sources import row_outcomes

KINDS = (".jsonl", ".parquet", ".csv")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a file of the kind that its name says; in CSV an object is a cell of JSON, null an empty one."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    if kind == ".csv":
        lines = io.StringIO(newline="")
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        text = lines.getvalue()
    else:
        text = json.dumps(rows) if kind == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def a_row(value: Any, number: int = 7) -> Row:
    """A row as it would be read from a file."""
    return Row("/some/where/rows.jsonl", number, value, json.dumps(value))


def carb_row(number: int) -> dict[str, Any]:
    """A row as CARB is published."""
    prompt = f"Frage {number}: Was isst man hier am liebsten zum Frühstück, wenn die Familie am Sonntag Zeit hat?"
    chosen = [f"Brötchen mit Butter und Marmelade, dazu ein weich gekochtes Ei, und zwar {number} davon."]
    rejected = [f"Antwort {letter} auf die Frage, die niemand so gestellt hätte." for letter in "ABC"]
    counts = {"num_correct": 1, "num_rejected": 3, "total_completions": 4, "additional_metadata": "{}"}
    row = {"id": str(number), "language": "German", "country": "Germany", "subset": "cultural_commonsense"}
    return row | counts | {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def fault_names(outcome: Outcome) -> list[str]:
    """The names of a row's faults, in order."""
    return [fault.name for fault in outcome.faults]


def outcome_of(folder: Path, value: Any, *overrides: str) -> Outcome:
    """What becomes of one row, read as a configuration says: `data=carb`, ..."""
    path = folder / "rows.jsonl"
    path.write_text(json.dumps(value))
    (outcome,) = row_outcomes(composed(*overrides).model_copy(update={"path": str(path)}))
    return outcome


@cache
def composed(*overrides: str) -> DataSection:
    """The `data` section of a source that reads a file."""
    return load_data_config([*overrides, "data.path=rows.jsonl"]).data


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value

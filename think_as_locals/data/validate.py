"""`tal data validate` and `tal data build`: rows with their faults named; nothing is lost at a bad row."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from think_as_locals.data import jsonl
from think_as_locals.data.checks import examine
from think_as_locals.data.defects import Defect
from think_as_locals.data.importers import row_outcomes
from think_as_locals.data.outcomes import Outcome, mark_repeats
from think_as_locals.data.spec import DataSpec
from think_as_locals.types import DataError

_SHOWN = 3  # places that the table gives of each defect
_TICK = 500  # rows between two movements of the progress bar


@dataclass
class Tally:
    """What became of the rows so far.

    Args:
        rows: All that were read; `imported + set_aside`.
        items: How many items the imported ones are (a row of rated responses can be none or several).
        faults: `file:row: severity: defect: what is wrong`, one a line.
        counts: Rows with each defect.
        places: The first places of each defect.
    """

    rows: int = 0
    imported: int = 0
    set_aside: int = 0
    items: int = 0
    faults: list[str] = field(default_factory=list)
    counts: Counter[Defect] = field(default_factory=Counter)
    places: dict[Defect, list[str]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one more row."""
        self.rows += 1
        self.imported += outcome.imported
        self.set_aside += not outcome.imported
        self.items += len(outcome.items)
        self.counts.update({fault.defect for fault in outcome.faults})
        self.faults += _said(outcome)
        for defect in {fault.defect: None for fault in outcome.faults}:
            places = self.places.setdefault(defect, [])
            if len(places) < _SHOWN:
                places.append(f"{Path(outcome.row.file).name}:{outcome.row.number}")

    @property
    def clean(self) -> bool:
        """Whether no row has a fault; a row that is sound and holds no item is none."""
        return all(defect.severity == "unused" for defect in self.counts)

    def __str__(self) -> str:
        return f"{self.rows:,} rows = {self.imported:,} imported ({self.items:,} items) + {self.set_aside:,} set aside"


def validate(data: DataSpec, *, strict: bool, quarantine: Path | None, seed: int = 0) -> Tally:
    """Read all rows and name every fault.

    Args:
        data: Source and path.
        strict: Stop behind the first row with a fault.
        quarantine: A new file for the rows that cannot be imported, each untouched and with its reasons.
        seed: Decides what is drawn where a source draws.

    Raises:
        DataError: a file as a whole cannot be read, or the quarantine file is there already.
    """
    tally = Tally()
    with ExitStack() as stack:
        aside = stack.enter_context(jsonl.new_file(quarantine, keep_empty=False)) if quarantine else None
        for _ in _counted(data, seed, tally, aside):
            if strict and not tally.clean:
                break
    return tally


def build(data: DataSpec, out: Path, *, strict: bool, seed: int = 0) -> Tally:
    """Write the items of a source as our own JSONL, and beside it `NAME.quarantine.jsonl` where rows are set aside.

    Raises:
        DataError: a file as a whole cannot be read, a file to write is there already, a country that no item is about,
            or with `strict` the faults of the first row that has any; nothing is written then.
    """
    tally = Tally()
    cultures: set[str | None] = set()
    with ExitStack() as stack:
        file = stack.enter_context(jsonl.new_file(out))
        aside = stack.enter_context(jsonl.new_file(out.with_suffix(".quarantine.jsonl"), keep_empty=False))
        for outcome in _counted(data, seed, tally, aside):
            if strict and not tally.clean:
                raise DataError("\n".join(_said(outcome)))
            cultures.update(item.culture for item in outcome.items)
            for item in outcome.items:
                file.write(jsonl.line(item))
        if missing := [country for country in data.countries or () if country not in cultures]:
            raise DataError(f"data.countries: no items of {', '.join(map(repr, missing))}")
    return tally


def show(tally: Tally) -> None:
    """Print every fault in a line of its own, then the rows with each defect and where it stands first."""
    try:
        for fault in tally.faults:
            print(_printable(fault))
        if tally.counts:
            # Names of files are no markup, and `:train:` in a place on the Hub is no picture of a train.
            Console(markup=False, emoji=False).print(_table(tally))
        print(tally, flush=True)
    except BrokenPipeError:  # `| head`: what Python would flush at its end has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable(text: str) -> str:
    """A text that standard output can take: a file's name may be no UTF-8, a terminal no Unicode."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="backslashreplace").decode(encoding)


def _said(outcome: Outcome) -> list[str]:
    place = outcome.row.place
    return [f"{place}: {fault.defect.severity}: {fault.defect}: {fault.detail}" for fault in outcome.faults]


def _table(tally: Tally) -> Table:
    shown = Table("defect", "", "rows", "first in", "meaning")
    shown.columns[2].justify = "right"
    shown.columns[3].overflow = "fold"  # a place that is cut off says nothing
    order = list(Defect)
    for defect in sorted(tally.counts, key=order.index):
        places = _printable("\n".join(tally.places[defect]))
        shown.add_row(str(defect), defect.severity, f"{tally.counts[defect]:,}", places, defect.meaning)
    return shown


def _counted(data: DataSpec, seed: int, tally: Tally, aside: TextIO | None) -> Iterator[Outcome]:
    """What became of every row, counted, with a line in `aside` for those that cannot be imported."""
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        outcomes = row_outcomes(data, seed)
        if data.countries is not None:
            outcomes = (outcome.of_countries(data.countries) for outcome in outcomes)
        for outcome in examine(mark_repeats(outcomes)):
            tally.add(outcome)
            if tally.rows % _TICK == 0:
                progress.update(task, completed=tally.rows)
            if aside and not outcome.imported:
                aside.write(_aside(outcome))
            yield outcome


def _aside(outcome: Outcome) -> str:
    """A row that is set aside, untouched as the text it was, and why."""
    row = outcome.row
    reasons = [{"defect": str(fault.defect), "detail": fault.detail} for fault in outcome.faults]
    # ASCII alone: bytes that are no UTF-8 stand in the text as surrogate escapes.
    return json.dumps({"file": row.file, "row": row.number, "faults": reasons, "text": row.text}) + "\n"

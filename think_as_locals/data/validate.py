"""`tal data validate` and `tal data build`: name the faults of every row, and set bad rows aside."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from think_as_locals.data.fields import shown
from think_as_locals.data.languages import other_language
from think_as_locals.data.rows import Defect, Fault, Outcome, mark_repeats
from think_as_locals.data.sources import jsonl, row_outcomes
from think_as_locals.types import DataError, Item

if TYPE_CHECKING:
    from think_as_locals.config.schema import DataSection

_MAX_PLACES = 3  # that the table gives for each defect
_TICK = 500  # rows between two updates of the progress bar


@dataclass
class Tally:
    """Counts of what became of the rows."""

    rows: int = 0  # = imported + set_aside
    imported: int = 0
    set_aside: int = 0
    items: int = 0  # of the imported rows: a row of rated responses can give none or several
    faults: list[str] = field(default_factory=list)  # `file:row: severity: defect: what is wrong`
    counts: Counter[Defect] = field(default_factory=Counter)  # rows with each defect
    places: dict[Defect, list[str]] = field(default_factory=dict)  # the first ones of each defect

    def add(self, outcome: Outcome) -> None:
        """Count one more row."""
        self.rows += 1
        self.imported += outcome.imported
        self.set_aside += not outcome.imported
        self.items += len(outcome.items)
        self.counts.update({fault.defect for fault in outcome.faults})
        self.faults += _fault_lines(outcome)
        for defect in dict.fromkeys(fault.defect for fault in outcome.faults):
            places = self.places.setdefault(defect, [])
            if len(places) < _MAX_PLACES:
                places.append(f"{Path(outcome.row.file).name}:{outcome.row.number}")

    @property
    def clean(self) -> bool:
        """Whether no row has an error or a warning."""
        return all(defect.severity == "skipped" for defect in self.counts)

    def __str__(self) -> str:
        return f"{self.rows:,} rows = {self.imported:,} imported ({self.items:,} items) + {self.set_aside:,} set aside"


def validate(data: DataSection, *, strict: bool, quarantine: Path | None, seed: int = 0) -> Tally:
    """Read all rows and name every fault.

    Args:
        data: Source and path.
        strict: Stop after the first row with a fault.
        quarantine: A new file for the rows that cannot be imported, unchanged and with the reasons.
        seed: Of what a source draws at random.

    Raises:
        DataError: a file as a whole cannot be read, or the quarantine file exists.
    """
    tally = Tally()
    with ExitStack() as stack:
        aside = stack.enter_context(jsonl.new_file(quarantine, keep_empty=False)) if quarantine else None
        for _ in _counted(data, seed, tally, aside):
            if strict and not tally.clean:
                break
    return tally


def build(data: DataSection, out: Path, *, strict: bool, seed: int = 0) -> Tally:
    """Write the items of a source as our own JSONL, and beside it `NAME.quarantine.jsonl` if rows are set aside.

    Raises:
        DataError: a file as a whole cannot be read, a file to write exists, a country that no item is about, or with
            `strict` the faults of the first row that has any; nothing is written then.
    """
    tally = Tally()
    cultures: set[str | None] = set()
    with ExitStack() as stack:
        file = stack.enter_context(jsonl.new_file(out))
        aside = stack.enter_context(jsonl.new_file(out.with_suffix(".quarantine.jsonl"), keep_empty=False))
        for outcome in _counted(data, seed, tally, aside):
            if strict and not tally.clean:
                raise DataError("\n".join(_fault_lines(outcome)))
            cultures.update(item.culture for item in outcome.items)
            for item in outcome.items:
                file.write(jsonl.line(item))
        if missing := [country for country in data.countries or () if country not in cultures]:
            raise DataError(f"data.countries: no items of {', '.join(map(repr, missing))}")
    return tally


def show(tally: Tally) -> None:
    """Print one line per fault, then a table of the defects with the number of rows and the first places."""
    try:
        for fault in tally.faults:
            print(_printable(fault))
        if tally.counts:
            table = Table("defect", "", "rows", "first in", "meaning")
            table.columns[2].justify = "right"
            table.columns[3].overflow = "fold"  # a truncated place is useless
            for defect in (defect for defect in Defect if defect in tally.counts):
                places = _printable("\n".join(tally.places[defect]))
                table.add_row(str(defect), defect.severity, f"{tally.counts[defect]:,}", places, defect.meaning)
            # File names are no markup, and `:train:` in a place on the Hub is no emoji.
            Console(markup=False, emoji=False).print(table)
        print(tally, flush=True)
    except BrokenPipeError:  # `| head`: nothing is left to flush to at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable(text: str) -> str:
    """Escape what standard output cannot encode: file names need not be UTF-8, nor terminals Unicode."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="backslashreplace").decode(encoding)


def _fault_lines(outcome: Outcome) -> list[str]:
    place = outcome.row.place
    return [f"{place}: {fault.defect.severity}: {fault.defect}: {fault.detail}" for fault in outcome.faults]


def _counted(data: DataSection, seed: int, tally: Tally, aside: TextIO | None) -> Iterator[Outcome]:
    """Yield what becomes of every row, count it, and write rows that cannot be imported to `aside`."""
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        outcomes = row_outcomes(data, seed)
        if (countries := data.countries) is not None:
            outcomes = (
                replace(outcome, items=tuple(item for item in outcome.items if item.culture in countries))
                for outcome in outcomes
            )
        for outcome in examine(mark_repeats(outcomes)):
            tally.add(outcome)
            if tally.rows % _TICK == 0:
                progress.update(task, completed=tally.rows)
            if aside and not outcome.imported:
                row = outcome.row
                reasons = [{"defect": str(fault.defect), "detail": fault.detail} for fault in outcome.faults]
                line = {"file": row.file, "row": row.number, "faults": reasons, "text": row.text}
                aside.write(json.dumps(line) + "\n")  # ASCII: the text may hold surrogate escapes
            yield outcome


_MARKS = ("assistant\n\n", "user\n\n", "<|", "_of_turn>", "INST]")  # whatever the pattern finds holds one of them
_NEXT_TURN = re.compile(
    # A role's name as a chat template leaves it when its special tokens are dropped: glued to the text before it, or at
    # the beginning of a line. "I am an AI assistant" before an empty line does not count.
    r"(?<![ \t\-*_\"'`(#:/„“«])(?:assistant|user)\n\n"
    r"|<\|(?:im_start|im_end|eot_id|start_header_id|end_header_id|endoftext|end_of_text)\|>"
    r"|<(?:start|end)_of_turn>|\[/?INST\]"
)
_VISIBLE = re.compile(  # not blanks, control characters, direction marks, joiners, fillers, variation selectors
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def examine(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Add warnings for suspicious items: run-on turns, texts that are invisible or in another language."""
    for outcome in outcomes:
        yield outcome.with_faults(*_run_on(outcome.items), *_foreign_or_invisible(outcome.items))


def _run_on(items: tuple[Item, ...]) -> Iterator[Fault]:
    for name, text in dict.fromkeys(pair for item in items for pair in _responses(item)):
        if any(mark in text for mark in _MARKS) and (found := _NEXT_TURN.search(text)):
            excerpt = text[max(0, found.start() - 20) : found.end()]
            yield Fault(Defect.RUN_ON_TURN, f"the {name} continues after {excerpt!r}")


def _foreign_or_invisible(items: tuple[Item, ...]) -> Iterator[Fault]:
    seen = set()
    for item in items:
        for name, text in [("prompt", item.prompt), *_responses(item)]:
            if text in seen:
                continue
            seen.add(text)
            if not _VISIBLE.search(text):
                yield Fault(Defect.INVISIBLE_TEXT, f"the {name} is {shown(text)}")
            if (other := other_language(text, item.language)) is not None:
                found = "another script" if other == "und" else repr(other)
                yield Fault(Defect.WRONG_LANGUAGE, f"the {name} is in {found}, the row says {item.language!r}")


def _responses(item: Item) -> Iterator[tuple[str, str]]:
    for number, response in enumerate(item.responses):
        yield ("best response" if number == item.best else f"response {number}"), response

"""`tal data validate` and `tal data build`: list the faults of every row, and put bad rows into quarantine."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.progress import track
from rich.table import Table

from think_as_locals.config.schema import DataSection
from think_as_locals.data.languages import in_another_script
from think_as_locals.data.load import choose
from think_as_locals.data.rows import Fault, Outcome, Severity, mark_repeats
from think_as_locals.data.sources import SOURCES, check_settings, jsonl, response_language, row_outcomes
from think_as_locals.runtime.files import json_line, new_file
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.terminal import Terminal
from think_as_locals.types import DataError, Item, shown

_MAX_PLACES = 3  # of each defect in the table


@dataclass
class Tally:
    """Counts of rows, items and faults."""

    rows: int = 0
    imported: int = 0  # the others go into quarantine
    items: int = 0  # of the imported rows; a row of rated responses may have none or several
    written: int | None = None  # items of a build, after selection by the keys of `data`
    faults: list[str] = field(default_factory=list)  # `file:row: severity: name: what is wrong`
    places: dict[tuple[Severity, str], list[str]] = field(default_factory=lambda: defaultdict(list))  # of named faults

    def add(self, outcome: Outcome) -> None:
        """Count one more row."""
        self.rows += 1
        self.imported += outcome.imported
        self.items += len(outcome.items)
        self.faults += _fault_lines(outcome)
        for severity, name in {(fault.severity, fault.name) for fault in outcome.faults}:
            self.places[severity, name].append(f"{Path(outcome.row.file).name}:{outcome.row.number}")

    @property
    def clean(self) -> bool:
        """Whether no row has an error or a warning."""
        return all(severity == "skipped" for severity, _ in self.places)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and every fault as plain JSON."""
        named = {
            name: {"severity": severity, "rows": len(places), "first_in": places[:_MAX_PLACES]}
            for (severity, name), places in self.places.items()
        }
        counts = {"rows": self.rows, "imported": self.imported, "items": self.items}
        return {**counts, "clean": self.clean, "named": named, "faults": self.faults}

    def require_items(self, path: object) -> None:
        """Raise a DataError with the first faults if no row gives an item."""
        if not self.items:
            first = "\n".join(self.faults[:_MAX_PLACES])
            raise DataError(f"{path}: no row can be imported (tal data validate counts all faults):\n{first}")

    def __str__(self) -> str:
        rest = self.rows - self.imported
        chosen = "" if self.written in (None, self.items) else f"; {self.written:,} items written, as data.* asks"
        return (
            f"{self.rows:,} rows = {self.imported:,} imported ({self.items:,} items) + {rest:,} in quarantine{chosen}"
        )


def item_outcomes(data: DataSection, seed: int = 0) -> Iterator[Outcome]:
    """Yield the outcomes of all rows of a source, with all their faults."""
    check_settings(data)
    outcomes = mark_repeats(row_outcomes(data, seed))
    return (outcome.with_faults(*suspicions(outcome.items)) for outcome in outcomes)


def validate(outcomes: Iterable[Outcome], *, strict: bool = False, quarantine: Path | None = None) -> Tally:
    """Tally the faults of all rows (`strict`: up to the first faulty one); write bad rows to `quarantine`."""
    tally = Tally()
    with new_file(quarantine, keep_empty=False) if quarantine else nullcontext() as file:
        for _ in _counted(outcomes, tally, file):
            if strict and not tally.clean:
                break
    return tally


def build(data: DataSection, out: Path, *, strict: bool, seed: int = 0) -> Tally:
    """Write the selected items as our own JSONL, bad rows to a file beside it; with `strict`, raise for any fault."""
    tally = Tally()
    items: list[Item] = []
    bad_rows = out.with_suffix(".quarantine.jsonl")
    with new_file(out) as file, new_file(bad_rows, keep_empty=False) as quarantine:
        for outcome in _counted(item_outcomes(data, seed), tally, quarantine):
            if (strict and not tally.clean) or (data.faulty_rows == "error" and outcome.errors):
                raise DataError("\n".join(_fault_lines(outcome)))
            items += outcome.items
        tally.require_items(data.path)
        chosen = choose(items, data, SOURCES[data.source].applies, seed)
        file.writelines(json_line(jsonl.fields(item)) for item in chosen)
        tally.written = len(chosen)
    return tally


def show(tally: Tally) -> None:
    """Print a line for each fault, then a table of the faults by name with counts and first places."""
    print_result(*tally.faults)
    if tally.places:
        table = Table("fault", "severity", "rows", "first in")
        table.columns[2].justify = "right"
        table.columns[3].overflow = "fold"  # a truncated place is useless
        for (severity, name), places in sorted(tally.places.items()):
            table.add_row(name, severity, f"{len(places):,}", "\n".join(places[:_MAX_PLACES]))
        print_result(table)
    print_result(str(tally))


def _fault_lines(outcome: Outcome) -> list[str]:
    row, faults = outcome.row, outcome.faults
    return [f"{row.place}: {fault.severity}: {fault.name}: {fault.detail}" for fault in faults]


def _counted(outcomes: Iterable[Outcome], tally: Tally, quarantine: TextIO | None) -> Iterator[Outcome]:
    """Yield the outcomes, counted; write rows that cannot be imported into quarantine."""
    console = Terminal(stderr=True)
    for outcome in track(outcomes, "rows", console=console, transient=True, disable=not console.is_terminal):
        tally.add(outcome)
        if quarantine and not outcome.imported:
            row = outcome.row
            reasons = [{"name": fault.name, "detail": fault.detail} for fault in outcome.faults]
            line = {"file": row.file, "row": row.number, "faults": reasons, "text": row.text}
            quarantine.write(json.dumps(line) + "\n")  # ASCII: the text may hold surrogate escapes
        yield outcome


_NEXT_TURN = re.compile(
    # The name of a role, as a chat template without its special tokens leaves it: directly after a text, or at the
    # beginning of a line. "I am an AI assistant" before an empty line does not count.
    r"(?<![ \t\-`(#:/„“«])(?:assistant|user)(?:\r?\n){2}"
    r"|<\|(?:im_start|im_end|eot_id|start_header_id|end_header_id|endoftext|end_of_text)\|>"
    r"|(?:\r?\n){2}(?:Human|Assistant):|<(?:start|end)_of_turn>|\[/?INST\]"
)
_VISIBLE = re.compile(  # not blanks, control characters, direction marks, joiners, fillers, variation selectors
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def suspicions(items: Sequence[Item]) -> Iterator[Fault]:
    """Yield warnings about the items of a row: run-on turns, invisible texts, texts in another script."""
    for name, text in dict.fromkeys(pair for item in items for pair in _responses(item)):
        if found := _NEXT_TURN.search(text):
            excerpt = text[max(0, found.start() - 20) : found.end()]
            yield Fault("run_on_turn", f"the {name} continues after {excerpt!r}")
    seen = set()
    for item in items:
        for name, text in [("prompt", item.prompt), *_responses(item)]:
            if text in seen:
                continue
            seen.add(text)
            if not _VISIBLE.search(text):
                yield Fault("invisible_text", f"the {name} is {shown(text)}")
            expected = item.language if name == "prompt" else response_language(item)
            if in_another_script(text, expected):
                yield Fault("wrong_language", f"the {name} is in another script, it counts as {expected!r}")


def _responses(item: Item) -> Iterator[tuple[str, str]]:
    for number, response in enumerate(item.responses):
        yield ("best response" if number == item.best else f"response {number}"), response

"""What becomes of a row of a data set: its items, or faults with a name, a place and a message."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from think_as_locals.types import DataError, Item

Severity = Literal["error", "skipped", "warning"]
"""`error`: the row cannot be an item. `skipped`: valid, but gives no item. `warning`: an item, but suspicious."""


class Defect(Enum):
    """The named defects."""

    NOT_JSON = "error", "the line is not JSON in UTF-8"
    NOT_AN_OBJECT = "error", "the row is not an object with named fields"
    MISSING_FIELD = "error", "a required field is missing or null"
    UNKNOWN_FIELD = "error", "a field that the schema does not have"
    WRONG_TYPE = "error", "a field is not of the type in the schema"
    EMPTY_PROMPT = "error", "the prompt is blank"
    EMPTY_RESPONSE = "error", "a response is blank"
    EMPTY_FIELD = "error", "a required text field is blank"
    BROKEN_TEXT = "error", "a text holds half of a surrogate pair, which UTF-8 cannot encode"
    WRONG_COUNT = "error", "too few or too many responses for an item"
    IDENTICAL_RESPONSES = "error", "two responses are the same text"
    BAD_BEST = "error", "the index of the best response is out of range"
    BAD_RATING = "error", "a rating or preference is not on its scale"
    UNKNOWN_LANGUAGE = "error", "the language is neither a name nor a tag that CLDR knows"
    UNKNOWN_CULTURE = "error", "the country is neither a name nor a code that CLDR knows"
    REPEATED_ID = "error", "an earlier row has the same id"
    UNKNOWN_USER = "error", "the survey has no valid row for the person"
    TIE = "skipped", "no response is preferred"
    UNPAIRED = "skipped", "no other response to the question has a different rating"
    NO_MAJORITY = "skipped", "no single answer has the most votes, or it has fewer than three"
    NAMES_CULTURE = "skipped", "the most frequent answer names a region, which would give it away"
    NO_RIVALS = "skipped", "too few regions gave other answers that could serve as wrong ones"
    NO_QUESTION = "skipped", "the row has no question"
    NO_RESPONSE = "skipped", "the model's response is empty"
    NO_COUNTRY = "skipped", "the row names no country, or none that CLDR knows"
    INVISIBLE_TEXT = "warning", "a text consists of invisible characters: zero-width, control or direction marks"
    WRONG_LANGUAGE = "warning", "a text is not in the language that the row names"
    RUN_ON_TURN = "warning", "a response continues into another turn (it holds a chat template's role or token)"
    COUNTRY_MISMATCH = "warning", "the prompt names another country than the row"
    DUPLICATE = "warning", "an earlier row has the same prompt and responses"
    COUNT_MISMATCH = "warning", "a count in the row differs from its number of responses"
    BAD_METADATA = "warning", "additional_metadata is not JSON"
    LEFT_OUT_SAMPLE = "warning", "a survey sample is of no country that CLDR knows, not national, or outdated"
    ASKED_BEFORE = "warning", "an earlier row has the question and two of its answers for a country: that row is kept"
    BAD_SHARES = "warning", "a country's shares are not one per option that sum to 1: the country is left out"
    UNKNOWN_DOMAIN = "warning", "the domain is none of the data set's"

    def __init__(self, severity: Severity, meaning: str) -> None:
        self.severity = severity
        self.meaning = meaning

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Fault:
    """A defect of one row; `detail` is a message that says what was got."""

    defect: Defect
    detail: str


def importable(faults: Iterable[Fault]) -> bool:
    """Return whether a row with these faults can still be an item: all of them are warnings."""
    return all(fault.defect.severity == "warning" for fault in faults)


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it is in its source.

    Args:
        file: The file, or `ID:split` on the Hub.
        number: Counted from 1: the line of a JSONL file, else the row.
        value: The parsed row; `None` where it could not be parsed.
        text: The unchanged row: the line, or its JSON where the source has no lines. Bytes that are not UTF-8 are
            kept as surrogate escapes.
        fault: Why the row could not be parsed.
        folder: The folder being read, where the file is one of several.
    """

    file: str
    number: int
    value: Any
    text: str
    fault: Fault | None = None
    folder: str | None = None

    @property
    def place(self) -> str:
        """Where the row is, e.g. `rows.jsonl:17`."""
        return f"{self.file}:{self.number}"

    @property
    def name(self) -> str:
        """An id for the row that does not depend on where the file or folder is, e.g. `de/rows.jsonl-17`."""
        file = Path(self.file)
        return f"{file.relative_to(self.folder).as_posix() if self.folder else file.name}-{self.number}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a row: its items and its faults.

    A row without items of its own can be imported all the same, as the worse response of a pair.
    """

    row: Row
    items: tuple[Item, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def imported(self) -> bool:
        """Whether the row was used."""
        return importable(self.faults)

    def with_faults(self, *more: Fault) -> Outcome:
        """Return the outcome with more faults, and without items if one of the faults rules them out."""
        if not more:
            return self
        faults = (*self.faults, *more)
        return replace(self, items=self.items if importable(faults) else (), faults=faults)

    def raise_errors(self) -> None:
        """Raise a `DataError` that says `file:row: what is wrong` if the row has an error."""
        if errors := [fault.detail for fault in self.faults if fault.defect.severity == "error"]:
            raise DataError(f"{self.row.place}: {'; '.join(errors)}")


def mark_repeats(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Add a fault to rows whose id, or whose prompt and responses, an earlier row has."""
    ids: dict[str, tuple[int, str]] = {}
    contents: dict[bytes, tuple[int, str]] = {}
    for outcome in outcomes:
        here = outcome.row.number, outcome.row.file
        faults = []
        for item in outcome.items:
            if (earlier := ids.setdefault(item.id, here)) != here:
                message = f"id {item.id!r} is already in line {earlier[0]} of {earlier[1]}"
                faults.append(Fault(Defect.REPEATED_ID, message))
                break
        if outcome.items and (earlier := contents.setdefault(_content(outcome.items), here)) != here:
            message = f"the same prompt and responses are in line {earlier[0]} of {earlier[1]}"
            faults.append(Fault(Defect.DUPLICATE, message))
        yield outcome.with_faults(*faults)


def _content(items: tuple[Item, ...]) -> bytes:
    """Hash what makes two rows the same: prompt, culture, responses, and which is the best."""
    parts = [(item.prompt, item.culture or "", item.responses[item.best], *sorted(item.responses)) for item in items]
    return hashlib.sha256("\0".join(text for texts in parts for text in texts).encode()).digest()


def valid_items(outcomes: Iterable[Outcome]) -> Iterator[Item]:
    """Yield the items; raise a `DataError` at the first row with an error, as `file:row: what is wrong`."""
    for outcome in outcomes:
        outcome.raise_errors()
        yield from outcome.items

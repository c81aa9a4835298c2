"""Reading the fields of a row: what is there, with its type, and a named fault for whatever is not."""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from think_as_locals.data.defects import Defect, Fault
from think_as_locals.data.names import culture_code, language_tag
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.rows import Row
from think_as_locals.types import LABELS, Item, is_text

_UNREAD_LIST = ("['", '["')
"""How a text begins that is a list of texts as numpy writes it, or as JSON cut off: no reader took it for one."""


class Fields:
    """The fields of one row. A field that is not as it should be reads as nothing and leaves a fault.

    Example:
        >>> fields = Fields(Row("rows.jsonl", 1, {"prompt": " "}, "..."), ("prompt",))
        >>> fields.text("prompt", Defect.EMPTY_PROMPT), fields.faults[0].detail
        ('', "prompt must be a non-blank string, got ' '")
    """

    def __init__(self, row: Row, schema: Sequence[str]) -> None:
        self.row = row
        self.faults: list[Fault] = [row.fault] if row.fault else []
        self._values: Mapping[str, Any] = {}
        if isinstance(row.value, Mapping):
            self._values = row.value
        elif not row.fault:
            got = type(row.value).__name__
            self.add(Defect.NOT_AN_OBJECT, f"expected an object with the fields {', '.join(schema)}; got {got}")

    @property
    def readable(self) -> bool:
        """Whether the row has fields at all."""
        return not any(fault.defect in (Defect.NOT_JSON, Defect.NOT_AN_OBJECT) for fault in self.faults)

    def add(self, defect: Defect, detail: str) -> None:
        """Record a fault of this row."""
        self.faults.append(Fault(defect, detail))

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self._values.get(name) is not None

    def value(self, name: str) -> Any:
        """A field that must be there, whatever it is."""
        if not self.has(name) and self.readable:
            self.add(Defect.MISSING_FIELD, f"missing {name}")
        return self._values.get(name)

    def text(self, name: str, blank: Defect = Defect.EMPTY_FIELD) -> str:
        """A field that must be a text."""
        value = self.value(name)
        return "" if value is None else self._checked(name, value, blank)

    def identifier(self, name: str) -> str:
        """A field that tells rows apart: a text or a whole number."""
        value = self.value(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return "" if value is None else self._checked(name, value, Defect.EMPTY_FIELD)

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that must be a list of texts, or one text (a list of one): responses."""
        value = self.value(name)
        if value is None:
            return ()
        if isinstance(value, str) and not value.startswith(_UNREAD_LIST):
            value = [value]
        if not isinstance(value, list):
            self.add(Defect.WRONG_TYPE, f"{name} must be a list of texts, got {shown(value)}")
            return ()
        if all(map(is_text, value)):
            return tuple(value)
        return tuple(self._checked(f"{name}[{i}]", text, Defect.EMPTY_RESPONSE) for i, text in enumerate(value))

    def number(self, name: str) -> float | None:
        """A field that must be a number; a text that is one (CSV) will do."""
        value = self.value(name)
        if value is None:
            return None
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not math.isfinite(number):
            self.add(Defect.WRONG_TYPE, f"{name} must be a number, got {shown(value)}")
            return None
        return number

    def language(self, name: str) -> str:
        """A field that names a language, as a BCP-47 tag."""
        said = self.text(name)
        tag = language_tag(said) if said else ""
        if tag is None:
            self.add(Defect.UNKNOWN_LANGUAGE, f"{name} {shown(said)}: expected an English name or a BCP-47 tag")
        return tag or ""

    def culture(self, name: str) -> str | None:
        """A field that names a country, as an ISO 3166 code; null names none."""
        said = self.text(name) if self.has(name) else ""
        code = culture_code(said) if said else None
        if said and code is None:
            self.add(
                Defect.UNKNOWN_CULTURE, f"{name} {shown(said)}: expected the English name of a country, or its code"
            )
        return code

    def outcome(self, *items: Item) -> Outcome:
        """What became of the row: these items, or none where a fault keeps it from being one."""
        return Outcome(self.row, items).with_faults(*dict.fromkeys(self.faults))

    def best_first(self, chosen: str, rejected: Sequence[str], **rest: Any) -> tuple[Item, ...]:
        """The item whose best response is the first; none where the row cannot be one."""
        responses = (chosen, *rejected)
        if all(fault.imports for fault in self.faults):
            self.check_count(responses)
            self.check_distinct(responses)
        if not all(fault.imports for fault in self.faults):
            return ()
        return (Item(responses=responses, best=0, **rest),)

    def check_count(self, responses: Sequence[str]) -> None:
        """Record where responses are too few or too many for an item."""
        if not 2 <= len(responses) <= len(LABELS):
            self.add(Defect.WRONG_COUNT, f"expected 2 to {len(LABELS)} responses, got {len(responses)}")

    def check_distinct(self, responses: Sequence[str]) -> None:
        """Record where two responses are the same."""
        seen: dict[str, int] = {}
        for number, text in enumerate(responses):
            if text and text in seen:  # a text that could not be read is blank
                self.add(
                    Defect.IDENTICAL_RESPONSES,
                    f"responses must be distinct: numbers {seen[text]} and {number} are the same text",
                )
            seen.setdefault(text, number)

    def length(self, name: str) -> int | None:
        """How many texts a field holds, as in `texts`; `None` where it holds none."""
        value = self._values.get(name)
        if isinstance(value, str):
            return None if value.startswith(_UNREAD_LIST) else 1
        return len(value) if isinstance(value, list) else None

    def check_counts(self, **counted: Sequence[str]) -> None:
        """Record where a field counts what other fields hold, and miscounts. A count that is left out is none."""
        for name, fields in counted.items():
            lengths = [self.length(field) for field in fields]
            there = sum(filter(None, lengths))
            if None in lengths or self._values.get(name) in (None, there):
                continue
            said = self.number(name)
            if said not in (None, there):
                self.add(Defect.COUNT_MISMATCH, f"{name} is {said:g}, but there are {there}")

    def _checked(self, name: str, value: Any, blank: Defect) -> str:
        if is_text(value):
            return str(value)
        if not isinstance(value, str):
            self.add(Defect.WRONG_TYPE, f"{name} must be a non-blank string, got {shown(value)}")
        elif not value.strip():
            self.add(blank, f"{name} must be a non-blank string, got {shown(value)}")
        else:
            self.add(Defect.BROKEN_TEXT, f"{name} holds half of a surrogate pair: {shown(value)}")
        return ""


def question_group(prompt: str) -> str:
    """The question group of a prompt that no data set gives a group: the same words, the same group."""
    folded = " ".join(prompt.casefold().split())
    return f"prompt-{hashlib.sha256(folded.encode()).hexdigest()[:16]}"


def unpacked(value: Any) -> Any:
    """A list or an object that stands in a text, as JSON or as Python writes it (CSV); any other value as it is.

    Example:
        >>> unpacked("{'Chile': [0.25, 0.75]}"), unpacked('["yes", null]'), unpacked("neither")
        ({'Chile': [0.25, 0.75]}, ['yes', None], 'neither')
    """
    if isinstance(value, str):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                found = read(value)
                repr(found)  # a whole number that is too long to be written is no value
                return found
    return value


def listed(names: Iterable[str]) -> str:
    """Names of fields one after the other; one that cannot be printed, or is long, as a fault shows a value."""
    return ", ".join(name if name.isprintable() and len(name) < 60 else shown(name) for name in names)


def shown(value: Any) -> str:
    """A value as a fault shows it: not all of a long one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

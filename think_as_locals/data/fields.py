"""Row models: pydantic models of a data set's rows that collect every fault of a row instead of raising.

Fields without a default are required; null counts as missing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, PlainValidator, PrivateAttr, ValidationInfo

from think_as_locals.data.languages import (
    culture_code,
    culture_fault,
    language_fault,
    language_tag,
    named_culture,
    similar_country,
)
from think_as_locals.data.rows import Defect, Fault, Outcome, Row, importable
from think_as_locals.types import LABELS, Item, is_text, shown

_ROLES = ("system", "user", "assistant")
_UNPARSED_LIST = ("['", '["')  # the beginning of a list that could not be parsed: printed by numpy, or truncated JSON


def field(check: Callable[[str, Any, list[Fault]], Any], empty: Any) -> PlainValidator:
    """Return a validator that calls `check(name, value, faults)`; a missing value is a fault and reads as `empty`."""

    def validate(value: Any, info: ValidationInfo) -> Any:
        names, faults = info.context  # type: ignore[misc]
        name = names[info.field_name]
        if value is None:
            faults.append(Fault(Defect.MISSING_FIELD, f"missing {name}"))
            return empty
        return check(name, value, faults)

    return PlainValidator(validate)


def check_text(name: str, value: Any, faults: list[Fault], blank: Defect = Defect.EMPTY_FIELD) -> str:
    """Read a text; anything else is a fault and reads as an empty text."""
    if is_text(value):
        return str(value)
    if isinstance(value, str) and value.strip():
        faults.append(Fault(Defect.BROKEN_TEXT, f"{name} holds half of a surrogate pair: {shown(value)}"))
    else:
        defect = blank if isinstance(value, str) else Defect.WRONG_TYPE
        faults.append(Fault(defect, f"{name} must be a non-blank string, got {shown(value)}"))
    return ""


def check_texts(name: str, value: Any, faults: list[Fault]) -> tuple[str, ...]:
    """Read a list of responses; a single text is a list of one."""
    if isinstance(value, str) and not value.startswith(_UNPARSED_LIST):
        value = [value]
    if not isinstance(value, list):
        faults.append(Fault(Defect.WRONG_TYPE, f"{name} must be a list of texts, got {shown(value)}"))
        return ()
    return tuple(check_text(f"{name}[{i}]", text, faults, Defect.EMPTY_RESPONSE) for i, text in enumerate(value))


def check_number(name: str, value: Any, faults: list[Fault]) -> float:
    """Read a number, or a text that holds one (CSV); anything else is a fault and reads as NaN."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(number := float(value)):
            return number
    faults.append(Fault(Defect.WRONG_TYPE, f"{name} must be a number, got {shown(value)}"))
    return math.nan


def check_rating(name: str, value: Any, faults: list[Fault], lowest: float, highest: float) -> float:
    """Read a number on a scale."""
    number = check_number(name, value, faults)
    if number < lowest or number > highest:
        faults.append(Fault(Defect.BAD_RATING, f"{name} must be from {lowest} to {highest}, got {number:g}"))
    return number


def _check_identifier(name: str, value: Any, faults: list[Fault]) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else check_text(name, value, faults)


def _check_language(name: str, value: Any, faults: list[Fault]) -> str:
    given = check_text(name, value, faults)
    if given and (fault := language_fault(given)):
        faults.append(Fault(Defect.UNKNOWN_LANGUAGE, f"{name} {shown(given)}: {fault}"))
    return (given and language_tag(given)) or ""


def check_country(name: str, value: Any, faults: list[Fault]) -> str | None:
    """Read the name of a country or of its people, or an ISO 3166 code, as the code."""
    given = check_text(name, value, faults)
    code = culture_code(given) if given else None
    if given and code is None:
        message = f"{name} {shown(given)}: expected the name of a country or of its people, or an ISO 3166 code"
        similar = similar_country(given)
        faults.append(Fault(Defect.UNKNOWN_CULTURE, f"{message}; did you mean {similar!r}?" if similar else message))
    return code


def check_culture(name: str, value: Any, faults: list[Fault], names: bool = False) -> str | None:
    """Read the code of a country or region, or a free name; with `names`, read a country's name as its code."""
    given = check_text(name, value, faults)
    given = named_culture(given) if names else given
    if given and (fault := culture_fault(given)):
        faults.append(Fault(Defect.UNKNOWN_CULTURE, f"{name} {shown(given)}: {fault}"))
    return given or None


def check_conversation(name: str, value: Any, faults: list[Fault]) -> str:
    """Read a conversation as a prompt: the text of a single message, or every turn with its role before it."""
    turns: list[tuple[str, str]] = []
    for i, message in enumerate(value if isinstance(value, list) else [value]):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str) and message.get("role") in _ROLES:
            turns.append((message["role"], content))
        else:
            reason = f"{name}[{i}] must be a message with a role ({', '.join(_ROLES)}) and its content"
            faults.append(Fault(Defect.WRONG_TYPE, reason))
    if texts := [content for _, content in turns if content.strip()]:
        check_text(name, min(texts, key=is_text), faults)  # the first that is broken, if any
    else:
        faults.append(Fault(Defect.EMPTY_PROMPT, f"{name} is empty"))
    return turns[0][1] if len(turns) == 1 else "\n\n".join(f"{role}: {content}" for role, content in turns)


Text = Annotated[str, field(check_text, "")]
Prompt = Annotated[str, field(partial(check_text, blank=Defect.EMPTY_PROMPT), "")]
Conversation = Annotated[str, field(check_conversation, "")]
Response = Annotated[str, field(partial(check_text, blank=Defect.EMPTY_RESPONSE), "")]
Responses = Annotated[tuple[str, ...], field(check_texts, ())]
Number = Annotated[float, field(check_number, math.nan)]
Identifier = Annotated[str, field(_check_identifier, "")]  # a text or a whole number
Language = Annotated[str, field(_check_language, "")]  # an English name or a tag, read as a BCP-47 tag
Country = Annotated[str | None, field(check_country, None)]  # a name or a code, read as an ISO 3166 code
Culture = Annotated[str | None, field(partial(check_culture, names=True), None)]  # the same, or a region or a free name


class RowModel(BaseModel):
    """One row of a data set, and its faults."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    FIELDS: ClassVar[tuple[str, ...]] = ()  # by which rows of this schema are recognised
    EXACT: ClassVar[bool] = False
    """Whether unknown fields are a fault instead of ignored, and missing ones are named in one fault."""
    DEFAULTS: ClassVar[tuple[str, ...]] = ()  # fields that `data.culture`, `data.language`, `data.domain` can fill in
    IGNORED_COLUMNS: ClassVar[tuple[str, ...] | None] = None  # if set, all other columns are named in a warning

    _row: Row = PrivateAttr()
    _values: Mapping[str, Any] = PrivateAttr()
    _faults: list[Fault] = PrivateAttr(default_factory=list)

    @classmethod
    def read(cls, row: Row) -> Self:
        """Read the fields of a row; every field is empty if the row could not be parsed or is not an object."""
        values = row.value if isinstance(row.value, Mapping) else {}
        names = {
            name: max(choices, key=lambda choice: (values.get(choice) is not None, choice in values))
            for name, choices in cls._choices().items()
        }
        required = cls._required()
        given = {
            name: values.get(key) for name, key in names.items() if name in required or values.get(key) is not None
        }
        given = {**row.defaults, **given} if row.defaults else given
        found: list[Fault] = []
        fields = cls.model_validate(given, context=(names, found))
        fields._row, fields._values = row, values
        expected = ", ".join(cls.FIELDS)
        if row.fault:
            fields.faults.append(row.fault)
            return fields
        if not isinstance(row.value, Mapping):
            message = f"expected an object with the fields {expected}; got {type(row.value).__name__}"
            fields.add(Defect.NOT_AN_OBJECT, message)
            return fields
        absent = sorted({names[name] for name in required} - set(values)) if cls.EXACT else []
        if absent:
            fields.add(Defect.MISSING_FIELD, f"missing {', '.join(absent)}; fields: {expected}")
        if cls.EXACT and (unknown := sorted(set(values) - set(cls.FIELDS))):
            printed = (name if name.isprintable() and len(name) < 60 else shown(name) for name in unknown)
            fields.add(Defect.UNKNOWN_FIELD, f"unknown {', '.join(printed)}; fields: {expected}")
        known = {f"missing {name}" for name in absent}
        fields.faults.extend(fault for fault in found if fault.detail not in known)
        return fields

    @property
    def row(self) -> Row:
        """The row that was read."""
        return self._row

    @property
    def faults(self) -> list[Fault]:
        """The faults found so far."""
        return self._faults

    @classmethod
    def columns(cls) -> set[str]:
        """Return the columns that are read, and those ignored on purpose."""
        return {*chain.from_iterable(cls._choices().values()), *(cls.IGNORED_COLUMNS or ())}

    @classmethod
    @cache
    def _choices(cls) -> dict[str, list[str]]:
        """Return the possible columns of each field, the preferred one first."""
        aliases = {name: field.validation_alias or name for name, field in cls.model_fields.items()}
        return {
            name: [str(each) for each in (alias.choices if isinstance(alias, AliasChoices) else [alias])]
            for name, alias in aliases.items()
        }

    @classmethod
    @cache
    def _required(cls) -> set[str]:
        return {name for name, field in cls.model_fields.items() if field.is_required()}

    def add(self, defect: Defect, detail: str) -> None:
        """Record a fault of this row."""
        self._faults.append(Fault(defect, detail))

    def outcome(self, *items: Item) -> Outcome:
        """Return the outcome of the row: these items, or none unless all faults are warnings."""
        return Outcome(self._row, items).with_faults(*dict.fromkeys(self._faults))

    def best_first(self, chosen: str, rejected: Sequence[str], **rest: Any) -> tuple[Item, ...]:
        """Return an item, the chosen response first, or nothing after a fault; `rest` replaces fields of the row."""
        responses = (chosen, *rejected)
        if importable(self._faults):
            self.check_count(responses)
            self.check_distinct(responses)
        if not importable(self._faults):
            return ()
        names = ("prompt", "culture", "language", "domain", "group")
        values = {"culture": None, "language": "en", **{n: getattr(self, n) for n in names if hasattr(self, n)}, **rest}
        values.setdefault("group", question_group(values["prompt"]))
        return (Item(responses=responses, best=0, **values),)

    def check_count(self, responses: Sequence[str]) -> None:
        """Record a fault if there are too few or too many responses for an item."""
        if not 2 <= len(responses) <= len(LABELS):
            self.add(Defect.WRONG_COUNT, f"expected 2 to {len(LABELS)} responses, got {len(responses)}")

    def check_distinct(self, responses: Sequence[str]) -> None:
        """Record a fault for responses with the same text."""
        seen: dict[str, int] = {}
        for number, text in enumerate(responses):
            if text and text in seen:  # a faulty text is empty
                message = f"responses must be distinct: numbers {seen[text]} and {number} are the same text"
                self.add(Defect.IDENTICAL_RESPONSES, message)
            seen.setdefault(text, number)

    def count_texts(self, name: str) -> int | None:
        """Return how many texts a field of the row holds; `None` if it is not a list."""
        value = self._values.get(name)
        if isinstance(value, str):
            return None if value.startswith(_UNPARSED_LIST) else 1
        return len(value) if isinstance(value, list) else None

    def check_counts(self, **counted: Sequence[str]) -> None:
        """Record a fault if a count in the row (the keyword) differs from the number of texts in some fields."""
        for name, fields in counted.items():
            lengths = [self.count_texts(field) for field in fields]
            total = sum(filter(None, lengths))
            value = self._values.get(name)
            if None in lengths or value in (None, total):
                continue
            number = check_number(name, value, self._faults)
            if number != total and not math.isnan(number):
                self.add(Defect.COUNT_MISMATCH, f"{name} is {number:g}, but there are {total}")


def question_group(prompt: str) -> str:
    """Return the question group of a prompt in a data set without groups: the same for the same words."""
    folded = " ".join(prompt.casefold().split())
    return f"prompt-{hashlib.sha256(folded.encode()).hexdigest()[:16]}"

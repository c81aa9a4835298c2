"""Rows of responses in columns of any names: chosen and rejected, or several and a label that says which is the best.

`data.columns` names the columns of a file where they are not the usual ones, `data.labels` what its labels mean. So
most data sets of preferences are a file in `conf/data`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError

from think_as_locals.config.compose import ASSETS, quoted
from think_as_locals.config.schema import DataSection
from think_as_locals.data.fields import (
    Culture,
    Identifier,
    Language,
    Prompt,
    RowModel,
    Text,
    Texts,
    Turn,
    as_turns,
    best_first,
    question_group,
)
from think_as_locals.data.rows import Fault, Outcome, Row, faults_of, unpack
from think_as_locals.data.sources.jsonl import IN_COLUMNS, query_items
from think_as_locals.types import LABELS, DataError, Item, join_turns, shown

_LETTERS = LABELS.lower()
_TIES = (
    *("tie", "draw", "both", "neither", "same", "a=b", "tie (bothbad)", "tie (inconsistent)"),
    *("both_bad", "bothbad", "both bad", "both_good", "bothgood", "both good"),
)
_BEFORE_LABEL = ("response_", "answer_", "output_", "model_")
_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "responses": (*IN_COLUMNS, "responses"),
    "best": ("best", "preference", "winner", "preferred", "label"),
    "culture": ("culture", "country"),
    "language": ("language",),
    "domain": ("domain", "subset"),
    "group": ("group",),
    "id": ("id",),
}
"""The usual columns of each field. Of several, the first that a row has is read, but all responses."""
_OPTIONAL = ("culture", "language", "domain", "group", "id")
_JOINED = {"prompt": "\n\n", "group": "/", "id": "/"}
"""Fields whose several columns are joined, if a row has the last of them that is not Alpaca's `input`."""
UNREAD = frozenset({"chosen_model", "rejected_model", "model_a", "model_b"})
"""Columns that are left out on purpose."""
_TEXT = "(response|answer|output|completion|reply|candidate|conversation|ref)"
_LOOK = {
    "prompt": r"(user_)?(prompt|question|instruction|query|request|message|input)|history|context",
    "chosen": rf"({_TEXT}_)?(chosen|better|preferred|accepted|winning|positive)(_{_TEXT})?",
    "rejected": rf"({_TEXT}_)?(rejected|worse|dispreferred|losing|negative)(_{_TEXT})?",
    "responses": rf"(\w+_)?{_TEXT}_[a-h0-8]",
    "best": rf"(\w+_)?(best|better|winner|labels?|preference|preferred|verdict|choice)(_{_TEXT})?(_id)?",
    "culture": "culture|country|nationality",
    "language": "language|lang",
    "group": r"(question|prompt|group)_id|qid|group",
}
"""Other names of columns, in lower case and with _ between words and numbers, by which fields are guessed."""


class _Row(RowModel):
    prompt: Prompt
    culture: Culture | None = None
    language: Language
    domain: Text
    group: Identifier | None = None
    id: Identifier | None = None


class _PairRow(_Row):
    chosen: Text
    rejected: Texts


class _LabelledRow(_Row):
    responses: Texts
    best: Any
    letters: str = _LETTERS  # of the responses


@dataclass(frozen=True)
class Columns:
    """The columns of a source, and what its labels mean."""

    source: str
    names: Mapping[str, tuple[str, ...]]  # of each field
    labels: Mapping[str, str]  # a letter, or `tie`
    defaults: Mapping[str, str]  # of fields that a row does not have

    @classmethod
    def of(cls, data: DataSection) -> Columns:
        """Return the usual columns and labels, but for those that the configuration names."""
        given = _as_tuples(data.columns)
        names = {**_NAMES, **given}
        labels = {f"{before}{x}": x for x in _LETTERS for before in ("", *_BEFORE_LABEL)}
        labels |= {f"{before}{number}": x for number, x in enumerate(_LETTERS, 1) for before in _BEFORE_LABEL}
        labels |= (
            dict(zip(map(str.casefold, names["responses"]), _LETTERS, strict=False)) if "responses" in given else {}
        )
        labels |= dict.fromkeys(_TIES, "tie") | dict.fromkeys(("a>b", "a>>b", "b<a"), "a")
        labels |= dict.fromkeys(("b>a", "b>>a", "a<b"), "b")
        defaults = {"culture": data.culture, "language": data.language or "en", "domain": data.domain or data.source}
        return cls(
            source=data.source,
            names=names,
            labels={**labels, **{name.casefold(): label for name, label in (data.labels or {}).items()}},
            defaults={name: value for name, value in defaults.items() if value is not None},
        )

    @classmethod
    def of_conf(cls, source: str) -> Columns:
        """Return the columns of a source's file in `conf/data`, to recognise rows by them."""
        content = yaml.safe_load((ASSETS / "conf" / "data" / f"{source}.yaml").read_text(encoding="utf-8"))
        return cls(source=source, names={**_NAMES, **_as_tuples(content.get("columns"))}, labels={}, defaults={})

    def present(self, outcomes: Iterable[Outcome], given: Iterable[str]) -> Iterator[Outcome]:
        """Yield outcomes; at the end raise a DataError if no row has the column given for a field that may be empty."""
        missing = {field: self.names[field] for field in given if field in _OPTIONAL}
        for outcome in outcomes:
            if missing and isinstance(row := outcome.row.value, Mapping):
                missing = {field: names for field, names in missing.items() if row.keys().isdisjoint(names)}
            yield outcome
        for field, names in missing.items():
            raise DataError(f"data.columns.{field}: no row has a column {' or '.join(map(repr, names))}")

    @property
    def all(self) -> set[str]:
        """The names of all columns that are read or left out on purpose."""
        return {*UNREAD, *(name for names in self.names.values() for name in names)}

    def match(self, columns: set[str]) -> int:
        """Return how many of a row's columns are read; 0 unless they have two responses and say which is better."""
        found = {field for field, names in self.names.items() if not columns.isdisjoint(names)}
        needed = [field for field, names in self.names.items() if set(names).isdisjoint(_NAMES[field])]
        is_pair = {"chosen", "rejected"} <= found or {"prompt", "responses", "best"} <= found
        return len(columns & self.all) if is_pair and found.issuperset(needed) else 0

    def items(self, row: Row) -> Iterator[Item | Fault]:
        """Yield the item of a row."""
        values = self._values(row.value) if isinstance(row.value, Mapping) else row.value
        kind = _LabelledRow if isinstance(values, Mapping) and "responses" in values else _PairRow
        try:
            fields = kind.model_validate(values)
        except ValidationError as error:
            for fault in faults_of(error):
                names = self.names.get(fault.detail.partition(":")[0], ()) if fault.name == "missing" else ()
                yield Fault(fault.name, f"{fault.detail}, in column {' or '.join(names)}") if names else fault
            return
        key = f"{fields.domain}/{fields.id}" if fields.id else ""
        prompt, turns = fields.prompt, list[tuple[str, str]]()
        if not isinstance(prompt, str):
            turns = [(turn.role, turn.content) for turn in prompt]
            prompt = join_turns(turns)
            turns = turns if len(turns) > 1 else []
        common = {
            **fields.model_dump(include={"culture", "language", "domain"}),
            "prompt": prompt,
            "turns": turns,
            "id": f"{self.source}/{fields.language}/{key}" if key else f"{self.source}/{row.name}",
            "group": fields.group or key or question_group(prompt),
            "source": self.source,
        }
        answers = (fields.chosen, *fields.rejected) if isinstance(fields, _PairRow) else fields.responses
        if whole := [text for text in answers if _HH_TURN.match(text) and len(_HH_TURN.findall(text)) > 1]:
            expected = "expected answers, or dialogues that all end with one (Assistant) and part there"
            yield Fault("dialogue", f"{expected}, got {shown(whole[0])}")
        if isinstance(fields, _PairRow):
            yield best_first(fields.chosen, fields.rejected, **common)
            return
        label = self._label(fields.best)
        best = fields.letters.find(label or "?")
        if label == "tie":
            yield Fault("tie", f"best is {shown(fields.best)}")
        elif not 0 <= best < len(fields.responses):
            known = ", ".join(fields.letters[: len(fields.responses)].upper())
            column = next(name for name in self.names["best"] if row.value.get(name) is not None)
            detail = f"{column} must be {known} or tie, got {shown(fields.best)}"
            named = dict(zip(_LETTERS, self.names["responses"], strict=False)).get(label or "")
            meanings = "data.labels says what others mean: {1: a, 2: b} or {0: a, 1: b}"
            yield Fault("unknown_label", f"{detail}; {f'{named} is empty' if named in row.value else meanings}")
        else:
            wrong = [text for i, text in enumerate(fields.responses) if i != best]
            if len(set(wrong)) < len(wrong):
                yield best_first(fields.responses[best], wrong, **common)
            else:
                yield Item(responses=fields.responses, best=best, **common)

    def queries(self, row: Row) -> Iterator[Item | Fault]:
        """Yield the item of a row to be judged: all responses in the order of their columns, whatever the label."""
        values = self._values(row.value) if isinstance(row.value, Mapping) else {}
        if "responses" not in values:
            yield from self.items(row)
            return
        if not _LETTERS.startswith(values.get("letters", "")):
            yield Fault("missing", f"expected responses in the first of {', '.join(self.names['responses'])}")
        fields = ("id", "prompt", "responses", "culture", "language")
        given = {name: str(values[name]) if name == "id" else values[name] for name in fields if name in values}
        yield from query_items(row._replace(value=given), defaults={"culture": None, "id": f"{self.source}/{row.name}"})

    def _label(self, value: Any) -> str | None:
        if isinstance(value, float) and value.is_integer():  # as a table writes whole numbers beside nulls
            value = int(value)
        return self.labels.get(str(value).strip().casefold())

    def _values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the fields."""
        values: dict[str, Any] = dict(self.defaults)
        for field, names in self.names.items():
            found = [row[name] for name in names if row.get(name) is not None]
            found = [as_turns(each) for each in found] if field == "prompt" else found
            needed = [name for name in names if name.casefold() != "input"] or names
            if not found or (field in _JOINED and row.get(needed[-1]) is None):
                continue
            if field == "responses" and len(found) > 1:  # a label names a column, whichever others are empty
                values["letters"] = "".join(x for n, x in zip(names, _LETTERS, strict=False) if row.get(n) is not None)
            if len(found) > 1 and field in _JOINED and not any(isinstance(each, list) for each in found):
                values[field] = _JOINED[field].join(str(each) for each in found if each != "")
            elif len(found) > 1 and field in ("rejected", "responses", *_JOINED):
                values[field] = found  # an error if some are messages
            else:
                values[field] = found[0]
        values = _without_turns(values)
        if isinstance(unpack(values.get("chosen")), list) and isinstance(values.get("rejected"), str):
            values["rejected"] = [values["rejected"]]  # both are answers that look like lists
        return values


def guess_columns(names: Iterable[str], given: Mapping[str, str | list[str]] = MappingProxyType({})) -> str | None:
    """Return `data.columns` as given, others by what their names look like; `None` if needed ones look like nothing.

    >>> guess_columns(["pair_id", "question", "response_A", "response_B", "label"])
    'data.columns={prompt: ["question"], responses: ["response_A", "response_B"], best: ["label"]}'
    """
    words = {name: re.sub(r"(?<=[a-z])(?=[A-Z0-9])|[^a-zA-Z0-9]+", "_", name).strip("_").casefold() for name in names}
    found = {field: [name for name in words if re.fullmatch(look, words[name])] for field, look in _LOOK.items()}
    found["responses"].sort(key=lambda name: words[name].rpartition("_")[2])  # label `a` is the first
    if "model_a" in words.values():  # an arena's question_id is that of the battle; the same words are one question
        found["group"] = []
    usual = {field: [name for name in _NAMES[field] if name in words] for field in found}
    found |= {field: columns for field, columns in usual.items() if columns}
    found |= {field: list(columns) for field, columns in _as_tuples(given).items()}
    if not found["prompt"] and "conversation" not in " ".join(words.values()):
        return None
    if found["chosen"] and found["rejected"] and given.keys().isdisjoint(("responses", "best")):
        found["responses"] = found["best"] = []
    elif len(found["responses"]) > 1 and found["best"]:
        found["chosen"] = found["rejected"] = []
    else:
        return None
    is_alpaca = [words.get(name) for name in found["prompt"][:2]] == ["instruction", "input"]
    several = {"responses": len(LABELS), "prompt": 1 + is_alpaca, **dict.fromkeys(given)}
    chosen = {field: ", ".join(map(quoted, columns[: several.get(field, 1)])) for field, columns in found.items()}
    return f"data.columns={{{', '.join(f'{field}: [{columns}]' for field, columns in chosen.items() if columns)}}}"


def _as_tuples(columns: Mapping[Any, str | list[str]] | None) -> dict[str, tuple[str, ...]]:
    return {field: (names,) if isinstance(names, str) else tuple(names) for field, names in (columns or {}).items()}


def _without_turns(values: dict[str, Any]) -> dict[str, Any]:
    """Split conversations, as in TRL, into the turns that all begin with, the prompt, and the rest, the responses.

    A conversation is a list of messages, or a text of them as in HH (arXiv 2204.05862). What follows the first turn in
    which they differ is a response, with further turns as "role: content". The turns continue a prompt of its own.
    """
    if prompt := _turns(values.get("prompt"), "user"):
        values = values | {"prompt": prompt}
    fields = ["responses"] if "responses" in values else ["chosen", "rejected"]
    given = values["responses"] if "responses" in values else [values.get(field) for field in fields]
    conversations = [_turns(each, "assistant") for each in given] if isinstance(given, list) else []
    if not conversations or not all(conversations):
        return values
    shared = 0
    while (
        all(len(each) > shared + 1 for each in conversations)
        and len({str(each[shared]) for each in conversations}) == 1
    ):
        shared += 1
    rests = [each[shared:] for each in conversations]
    if any(rest[0]["role"] != "assistant" for rest in rests):
        return values  # they answer different prompts, a fault
    texts = ["\n\n".join([rest[0]["content"], *(f"{t['role']}: {t['content']}" for t in rest[1:])]) for rest in rests]
    if turns := conversations[0][:shared]:
        values["prompt"] = _continued(values.get("prompt"), turns)
    return values | dict(zip(fields, [texts] if fields == ["responses"] else texts, strict=True))


# Tried only where white space begins: at each of n empty lines, it would take quadratic time.
_HH_TURN = re.compile(r"(?:\A|(?<!\s)[^\S\n]*\n[^\S\n]*\n)\s*(Human|Assistant):")


def _continued(prompt: Any, turns: list[dict[str, str]]) -> Any:
    """Return a prompt with the turns that continue it; some data repeat its end, or all of it, as their beginning."""
    before = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}] if prompt else []
    if not all(isinstance(turn, Mapping) and "role" in turn for turn in before):
        return prompt
    asked, told = ([(turn["role"], str(turn.get("content")).strip()) for turn in each] for each in (before, turns))
    starts = range(len(told) - len(asked) + 1)
    is_part = any(told[i : i + len(asked)] == asked for i in starts if asked)
    if told[0][0] != "assistant" and (is_part or str(prompt).strip() == join_turns(told)):
        return turns
    overlap = next((k for k in range(min(len(asked), len(told)), 0, -1) if asked[-k:] == told[:k]), 0)
    return [*before, *turns[overlap:]]


def _turns(value: Any, last: str) -> list[dict[str, str]]:
    """Return the messages of a conversation, the last by this role; none of any other value.

    In HH a prompt ends with "Assistant:", or at least begins after an empty line.
    """
    if isinstance(value, str) and value.lstrip().startswith("Human:"):
        _, *parts = _HH_TURN.split(value)
        roles = {"Human": "user", "Assistant": "assistant"}
        pairs = zip(parts[::2], parts[1::2], strict=True)
        turns = [{"role": roles[name], "content": text.strip()} for name, text in pairs]
        if last == "user" and turns[-1] == {"role": "assistant", "content": ""}:
            turns.pop()
        elif last == "user" and not value.startswith(("\n\nHuman:", "\r\n\r\nHuman:")):
            return []
    else:
        found = unpack(value)
        try:
            turns = [Turn.model_validate(turn).model_dump() for turn in found] if isinstance(found, list) else []
        except ValidationError:
            turns = []
    return turns if turns and turns[-1]["role"] == last else []

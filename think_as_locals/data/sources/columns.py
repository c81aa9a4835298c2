"""Rows of responses in columns of any names: chosen and rejected, or several and a label that says which is the best.

`data.columns` names the columns of a file where they are not the usual ones, `data.labels` what its labels mean. So
most data sets of preferences are a file in `conf/data`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from think_as_locals.config.compose import ASSETS
from think_as_locals.config.schema import DataSection
from think_as_locals.data.fields import (
    Culture,
    Identifier,
    Language,
    Prompt,
    RowModel,
    Text,
    Texts,
    best_first,
    question_group,
)
from think_as_locals.data.rows import Fault, Row, unpack
from think_as_locals.types import LABELS, Item, shown

_LETTERS = LABELS.lower()
_TIES = ("tie", "both", "neither", "same", "tie (bothbad)", "a=b")
_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "responses": ("responses", *(f"response_{letter}" for letter in _LETTERS)),
    "best": ("best", "preference", "winner", "preferred", "label"),
    "culture": ("culture", "country"),
    "language": ("language",),
    "domain": ("domain", "subset"),
    "group": ("group",),
    "id": ("id",),
}
"""The usual columns of each field. Of several, the first that a row has is read, but all responses."""
_TURNS = re.compile(r"\n\n(Human|Assistant): ")
_JOINED = {"prompt": "\n\n", "group": "/", "id": "/"}
"""Fields whose several columns are joined, if a row has the last of them."""
UNREAD = frozenset({"chosen_model", "rejected_model", "model_a", "model_b"})
"""Columns that are left out on purpose."""


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
        labels = {f"{before}{x}": x for x in _LETTERS for before in ("", "response_", "answer_", "output_", "model_")}
        labels |= (
            dict(zip(map(str.casefold, names["responses"]), _LETTERS, strict=False)) if "responses" in given else {}
        )
        labels |= dict.fromkeys(_TIES, "tie") | {"a>b": "a", "a>>b": "a", "b>a": "b", "b>>a": "b"}
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
        fields = kind.model_validate(values)
        key = f"{fields.domain}/{fields.id}" if fields.id else ""
        common = {
            **fields.model_dump(include={"prompt", "culture", "language", "domain"}),
            "id": f"{self.source}/{fields.language}/{key}" if key else f"{self.source}/{row.name}",
            "group": fields.group or key or question_group(str(fields.prompt)),
            "source": self.source,
        }
        if isinstance(fields, _PairRow):
            yield best_first(fields.chosen, fields.rejected, **common)
            return
        label = self._label(fields.best)
        if label == "tie":
            yield Fault("tie", f"best is {shown(fields.best)}")
        elif label is None or (best := _LETTERS.index(label)) >= len(fields.responses):
            known = ", ".join(LABELS[: len(fields.responses)])
            remedy = "data.labels says what others mean: {1: a, 2: b, 0: tie}"
            yield Fault("unknown_label", f"best must be {known} or tie, got {shown(fields.best)}; {remedy}")
        else:
            yield Item(responses=fields.responses, best=best, **common)

    def _label(self, value: Any) -> str | None:
        if isinstance(value, float) and value.is_integer():  # as a table writes whole numbers beside nulls
            value = int(value)
        return self.labels.get(str(value).strip().casefold())

    def _values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the fields."""
        values: dict[str, Any] = dict(self.defaults)
        for field, names in self.names.items():
            found = [row[name] for name in names if row.get(name) is not None]
            if not found or (field in _JOINED and row.get(names[-1]) is None):
                continue
            if len(found) > 1 and field in _JOINED:
                values[field] = _JOINED[field].join(map(str, found))
            elif len(found) > 1 and field in ("rejected", "responses"):
                values[field] = found
            else:
                values[field] = found[0]
        return _without_turns(values)


def _as_tuples(columns: Mapping[Any, str | list[str]] | None) -> dict[str, tuple[str, ...]]:
    return {field: (names,) if isinstance(names, str) else tuple(names) for field, names in (columns or {}).items()}


def _without_turns(values: dict[str, Any]) -> dict[str, Any]:
    """Split conversations, as in TRL or as the text of HH-RLHF, into a prompt and responses, their last messages.

    Conversations that differ before their last messages answer different prompts: they are left as they are, a fault.
    """
    fields = ["responses"] if "responses" in values else ["chosen", "rejected"]
    given = values["responses"] if "responses" in values else [values.get(field) for field in fields]
    conversations = [unpack(each) for each in given] if isinstance(given, list) else []
    if values.get("prompt") is None:
        conversations = [_dialogue(each) for each in conversations]
    if not conversations or not all(map(_ends_with_answer, conversations)):
        return values
    turns, *others = ([*each[:-1]] for each in conversations)
    if any(other != turns for other in others):
        return values
    texts = [each[-1]["content"] for each in conversations]
    if len(turns) > 1 or (turns and values.get("prompt") is None):
        values["prompt"] = turns
    return values | dict(zip(fields, [texts] if fields == ["responses"] else texts, strict=True))


def _dialogue(text: Any) -> Any:
    """Return the turns of a text that consists of such as `Human: ...`; anything else as it is."""
    if not isinstance(text, str) or not text.lstrip().startswith("Human: "):
        return text
    _, *parts = _TURNS.split(f"\n\n{text.lstrip()}")
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[name], "content": said.strip()} for name, said in zip(parts[::2], parts[1::2], strict=True)]


def _ends_with_answer(value: Any) -> bool:
    last = value[-1] if isinstance(value, list) and value else None
    return isinstance(last, Mapping) and last.get("role") == "assistant" and isinstance(last.get("content"), str)

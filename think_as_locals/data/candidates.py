"""Prompts with many candidate responses, for a reward model to choose from: one JSON object a line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, listed, shown
from think_as_locals.data.rows import Row, read_rows
from think_as_locals.types import DataError

FIELDS = ("id", "prompt", "culture", "language", "candidates", "qualities")

_SHOWN_FAULTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A prompt and the responses to choose from.

    Args:
        id: Unique within a file.
        prompt: What the user asked.
        culture: ISO 3166 code; `None` where the row names none.
        language: BCP-47 tag of the prompt.
        texts: Any number of candidates; the same text may come twice.
        qualities: How good each one is, on any scale; `None` where nobody knows.
    """

    id: str
    prompt: str
    culture: str | None
    language: str
    texts: tuple[str, ...]
    qualities: tuple[float, ...] | None = None


def read_candidates(path: Path) -> list[Candidates]:
    """Rows with the fields `id`, `prompt`, `culture` (or null), `language`, `candidates` and, if known, `qualities`.

    Raises:
        DataError: rows are not as they should be, each named as `file:row: what is wrong`; some rows have qualities and
            others none; or there are no rows.
    """
    found: dict[str, Candidates] = {}
    faults: list[str] = []
    with_qualities: dict[bool, str] = {}
    for row in read_rows(str(path)):
        fields = Fields(row, FIELDS)
        candidates = _candidates(fields, row)
        if candidates and candidates.id in found:
            fields.add(Defect.REPEATED_ID, f"id {candidates.id!r} stands in an earlier row already")
        faults += [f"{row.place}: {fault.detail}" for fault in fields.faults]
        if candidates and not fields.faults:
            found[candidates.id] = candidates
            with_qualities.setdefault(candidates.qualities is not None, row.place)
    if len(with_qualities) > 1:
        faults.append(f"{with_qualities[True]} has qualities and {with_qualities[False]} has none; give all or none")
    if faults:
        more = len(faults) - _SHOWN_FAULTS
        raise DataError("\n".join(faults[:_SHOWN_FAULTS] + ([f"and {more} more faults"] if more > 0 else [])))
    if not found:
        raise DataError(f"{path}: no rows; expected {', '.join(FIELDS)} (qualities may be left out)")
    return list(found.values())


def _candidates(fields: Fields, row: Row) -> Candidates | None:
    if not fields.readable:
        return None
    if unknown := sorted(set(row.value) - set(FIELDS)):
        fields.add(Defect.UNKNOWN_FIELD, f"unknown {listed(unknown)}; fields: {', '.join(FIELDS)}")
    texts = fields.texts("candidates")
    if not texts and isinstance(row.value.get("candidates"), list):
        fields.add(Defect.WRONG_COUNT, "expected at least one candidate, got none")
    return Candidates(
        id=fields.identifier("id"),
        prompt=fields.text("prompt", Defect.EMPTY_PROMPT),
        culture=fields.culture("culture"),
        language=fields.language("language"),
        texts=texts,
        qualities=_qualities(fields, row, len(texts)) if fields.has("qualities") else None,
    )


def _qualities(fields: Fields, row: Row, count: int) -> tuple[float, ...] | None:
    given = row.value["qualities"]
    if not isinstance(given, list) or not all(map(_is_finite, given)):
        fields.add(Defect.WRONG_TYPE, f"qualities must be a list of finite numbers, got {shown(given)}")
    elif len(given) != count:
        fields.add(Defect.WRONG_COUNT, f"expected a quality for each of {count} candidates, got {len(given)}")
    else:
        return tuple(map(float, given))
    return None


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False

"""CARE's rows, responses rated by natives: two responses to a question with different ratings make a pair."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, Field, FiniteFloat

from think_as_locals.data.fields import RowModel, Text, best_first
from think_as_locals.data.languages import culture_code, culture_fault
from think_as_locals.data.rows import Fault, Outcome, Row
from think_as_locals.types import Item

FIELDS = ("question", "response", "associated_culture")
"""The columns by which its rows are recognised."""


class RatedRow(RowModel):
    """A response to a question, and its rating."""

    prompt: Text
    response: Text
    rating: float


R = TypeVar("R", bound=RatedRow)


def pairs(
    responses: Sequence[tuple[Row, R]],
    rest: Callable[[tuple[Row, R], tuple[Row, R]], dict[str, Any]],
    limit: int | None,
) -> Iterator[Outcome]:
    """Yield the outcome of each response to one question: the pairs in which it is the better one.

    `rest` returns further fields of a pair. Responses with the same rating or text make no pair; a `limit` keeps the
    pairs whose ratings differ most.
    """
    found = [
        (one, other) if one[1].rating > other[1].rating else (other, one)
        for one, other in combinations(responses, 2)
        if one[1].rating != other[1].rating and one[1].response != other[1].response
    ]
    paired = {row.place for rivals in found for row, _ in rivals}
    found.sort(key=lambda rivals: rivals[1][1].rating - rivals[0][1].rating)
    items: dict[str, list[Item]] = defaultdict(list)
    for better, worse in found[:limit]:
        fields = {"prompt": better[1].prompt, **rest(better, worse)}
        items[better[0].place].append(best_first(better[1].response, [worse[1].response], **fields))
    for row, rated in responses:
        others = f"no other response to this question has a rating other than {rated.rating:g}"
        yield Outcome(row, tuple(items[row.place]), () if row.place in paired else (Fault("unpaired", others),))


_SCRIPTS = (("ja", "[\u3040-\u30ff]"), ("zh", "[\u4e00-\u9fff]"), ("ar", "[\u0600-\u06ff]"))
_PEOPLES = {"chinese": "CN", "japanese": "JP", "arab": "Arab"}


class CareRow(RatedRow):
    """CARE (arXiv 2504.05154, HF geyang627/CARE); its first release has the columns `rating` and `culture_type`."""

    prompt: Text = Field(validation_alias="question")
    rating: Annotated[FiniteFloat, Field(ge=1, le=10, validation_alias=AliasChoices("rating", "human_rating"))]
    cultural_type: Text = Field(validation_alias=AliasChoices("culture_type", "cul_type"))
    associated_culture: Text

    @property
    def language(self) -> str:
        """Arabic, Chinese or Japanese, by the script of the question; empty for any other."""
        return next((tag for tag, script in _SCRIPTS if re.search(script, self.prompt)), "")

    @property
    def culture(self) -> str:
        """CN for `Native (Chinese)`, `Chinese` and `China`; a name that is no country's stays as it is: `Arab`."""
        people = self.associated_culture.partition("(")[2].rstrip(") ") or self.associated_culture
        return _PEOPLES.get(people.casefold()) or culture_code(people) or people


def outcomes(rows: Iterable[Row], pairs_per_question: int | None) -> Iterator[Outcome]:
    """Yield the pairs of every question, each with the row of its better response."""
    questions: dict[str, list[tuple[Row, CareRow]]] = defaultdict(list)

    def read(row: Row) -> Iterator[Fault]:
        fields = CareRow.model_validate(row.value)
        if fault := culture_fault(fields.culture):
            yield Fault("unknown_culture", f"associated_culture: got {fields.associated_culture!r}, {fault}")
        elif fields.language:
            questions[fields.prompt].append((row, fields))
        else:
            yield Fault("unknown_language", "the question has no Arabic, Chinese or Japanese letter")

    yield from (outcome for row in rows if (outcome := Outcome.of(row, read)).faults)

    def rest(better: tuple[Row, CareRow], worse: tuple[Row, CareRow]) -> dict[str, str]:
        (row, fields), (other, _) = better, worse
        return {
            "id": f"care/{row.name}/{other.number if other.file == row.file else other.name}",
            "culture": fields.culture,
            "language": fields.language,
            "domain": fields.cultural_type.lower(),
            "source": "care",
        }

    for responses in questions.values():
        yield from pairs(responses, rest, pairs_per_question)

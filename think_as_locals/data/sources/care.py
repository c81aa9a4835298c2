"""CARE's rows, responses rated by natives: two responses to a question with different ratings make a pair."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AliasChoices, Field, PlainValidator

from think_as_locals.data.fields import Prompt, Response, RowModel, Text, check_rating, field
from think_as_locals.data.languages import culture_code
from think_as_locals.data.rows import Defect, Outcome, Row
from think_as_locals.types import Item


def rating_up_to(highest: float) -> PlainValidator:
    return field(partial(check_rating, lowest=1, highest=highest), math.nan)


class RatedRow(RowModel):
    """A response to a question, and its rating."""

    prompt: Prompt
    response: Response
    rating: float


R = TypeVar("R", bound=RatedRow)


def pair(responses: Sequence[R], rest: Callable[[R, R], dict[str, Any]], limit: int | None) -> Iterator[Outcome]:
    """Yield the outcome of each response to one question: the pairs in which it is the better one.

    `rest` returns further fields of a pair. Responses with the same rating or text make no pair; a `limit` keeps the
    pairs whose ratings differ most.
    """
    pairs = [
        (one, other) if one.rating > other.rating else (other, one)
        for one, other in combinations(responses, 2)
        if one.rating != other.rating and one.response != other.response
    ]
    paired = {id(fields) for rivals in pairs for fields in rivals}
    pairs.sort(key=lambda rivals: rivals[1].rating - rivals[0].rating)
    items: dict[int, tuple[Item, ...]] = defaultdict(tuple)
    for better, worse in pairs[:limit]:
        items[id(better)] += better.best_first(better.response, [worse.response], **rest(better, worse))
    for fields in responses:
        if id(fields) not in paired:
            others = "no other response to this question has a rating other than"
            fields.add(Defect.UNPAIRED, f"{others} {fields.rating:g}")
        yield fields.outcome(*items[id(fields)])


_SCRIPTS = (("ja", "[\u3040-\u30ff]"), ("zh", "[\u4e00-\u9fff]"), ("ar", "[\u0600-\u06ff]"))
_PEOPLES = {"chinese": "CN", "japanese": "JP", "arab": "Arab"}


class CareRow(RatedRow):
    """CARE (arXiv 2504.05154, HF geyang627/CARE); its first release has the columns `rating` and `culture_type`."""

    FIELDS: ClassVar = ("question", "response", "associated_culture")
    prompt: Prompt = Field(validation_alias="question")
    rating: Annotated[float, rating_up_to(10)] = Field(validation_alias=AliasChoices("rating", "human_rating"))
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
    questions: dict[str, list[CareRow]] = defaultdict(list)
    for row in rows:
        fields = CareRow.read(row)
        if fields.prompt and not fields.language:
            fields.add(Defect.UNKNOWN_LANGUAGE, "the question has no Arabic, Chinese or Japanese letter")
        if fields.faults:
            yield fields.outcome()
        else:
            questions[fields.prompt].append(fields)

    def rest(better: CareRow, worse: CareRow) -> dict[str, str]:
        other = worse.row.number if worse.row.file == better.row.file else worse.row.name
        return {"id": f"care/{better.row.name}/{other}", "domain": better.cultural_type.lower(), "source": "care"}

    for responses in questions.values():
        yield from pair(responses, rest, pairs_per_question)

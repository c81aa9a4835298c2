"""CARE (arXiv 2504.05154, HF geyang627/CARE): responses to questions about culture, rated from 1 to 10 by natives.

One response a row: `question, response, human_rating, cul_type, associated_culture, source` (first release: `rating`,
`culture_type`), in Arabic, Chinese and Japanese; the rows do not name the language, but the script tells. Two responses
to a question whose ratings differ make a pair, the better one first. "Native (Arab)" is no country: the culture is
called `Arab`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, ClassVar

from pydantic import AliasChoices, Field

from think_as_locals.data.fields import Prompt, Response, RowModel, Text, check_rating, field, question_group
from think_as_locals.data.languages import culture_code
from think_as_locals.data.rows import Defect, Outcome, Row
from think_as_locals.data.sources.ratings import pair_responses
from think_as_locals.types import Item

_SCRIPTS = (("ja", "[\u3040-\u30ff]"), ("zh", "[\u4e00-\u9fff]"), ("ar", "[\u0600-\u06ff]"))
_PEOPLES = {"chinese": "CN", "japanese": "JP", "arab": "Arab"}


class CareRow(RowModel):
    """One rated response."""

    FIELDS: ClassVar = ("question", "response", "associated_culture")

    question: Prompt
    response: Response
    rating: Annotated[float, field(partial(check_rating, lowest=1, highest=10), math.nan)] = Field(
        validation_alias=AliasChoices("rating", "human_rating")
    )
    cultural_type: Text = Field(validation_alias=AliasChoices("culture_type", "cul_type"))
    associated_culture: Text

    @property
    def language(self) -> str | None:
        """The language of the question's script."""
        return next((tag for tag, script in _SCRIPTS if re.search(script, self.question)), None)

    @property
    def culture(self) -> str:
        """CN for `Native (Chinese)`, `Chinese` and `China`; what is no country keeps its name."""
        people = self.associated_culture.partition("(")[2].rstrip(") ") or self.associated_culture
        return _PEOPLES.get(people.casefold()) or culture_code(people) or people


def outcomes(rows: Iterable[Row], pairs_per_question: int | None) -> Iterator[Outcome]:
    """Yield the pairs of every question (those whose ratings differ most), each with the row of its better response."""
    questions: dict[str, list[CareRow]] = defaultdict(list)
    for row in rows:
        fields = CareRow.read(row)
        if fields.question and not fields.language:
            fields.add(Defect.UNKNOWN_LANGUAGE, "the question has no Arabic, Chinese or Japanese letter")
        if fields.faults:
            yield fields.outcome()
        else:
            questions[fields.question].append(fields)
    for responses in questions.values():
        yield from pair_responses(responses, _pair, pairs_per_question)


def _pair(better: CareRow, worse: CareRow) -> Item:
    other = worse.row.number if worse.row.file == better.row.file else worse.row.name
    return Item(
        id=f"care/{better.row.name}/{other}",
        prompt=better.question,
        responses=(better.response, worse.response),
        best=0,
        culture=better.culture,
        language=str(better.language),
        domain=better.cultural_type.lower(),
        group=question_group(better.question),
        source="care",
    )

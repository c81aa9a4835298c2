"""CARE (arXiv 2504.05154, HF geyang627/CARE): responses to questions about culture, rated from 1 to 10 by natives.

One response a row: `question, response, human_rating, cul_type, associated_culture, source` (first release: `rating`,
`culture_type`), in Arabic, Chinese and Japanese; the rows do not say which, but their script does. Two responses to a
question whose ratings differ make a pair, with the better one first (as in SCPO's reading of PRISM; equal ratings make
none). "Native (Arab)" is no country: it stays the culture's name, `Arab`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, question_group
from think_as_locals.data.names import culture_code
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.ratings import paired
from think_as_locals.data.rows import Row
from think_as_locals.types import Item

FIELDS = ("question", "response", "associated_culture")
_LANGUAGES = (("ja", "[\u3040-\u30ff]"), ("zh", "[\u4e00-\u9fff]"), ("ar", "[\u0600-\u06ff]"))
_PEOPLES = {"chinese": "CN", "japanese": "JP", "arab": "Arab"}


@dataclass(frozen=True, slots=True)
class _Rated:
    """One response to a question."""

    row: Row
    question: str
    response: str
    rating: float
    language: str
    culture: str | None
    domain: str


def outcomes(rows: Iterable[Row], pairs_per_question: int | None) -> Iterator[Outcome]:
    """The pairs of every question, each with the row of its better response.

    Args:
        rows: Of any number of questions, in any order.
        pairs_per_question: Those whose ratings differ most; `None` for all.
    """
    questions: dict[str, list[_Rated]] = defaultdict(list)
    for row in rows:
        fields = Fields(row, FIELDS)
        rated = _rated(fields)
        if rated is None:
            yield fields.outcome()
        else:
            questions[rated.question].append(rated)
    for responses in questions.values():
        yield from paired(responses, _pair, pairs_per_question)


def _pair(better: _Rated, worse: _Rated) -> Item:
    other = worse.row.number if worse.row.file == better.row.file else worse.row.name
    return Item(
        id=f"care/{better.row.name}/{other}",
        prompt=better.question,
        responses=(better.response, worse.response),
        best=0,
        culture=better.culture,
        language=better.language,
        domain=better.domain,
        group=question_group(better.question),
        source="care",
    )


def _rated(fields: Fields) -> _Rated | None:
    question = fields.text("question", Defect.EMPTY_PROMPT)
    response = fields.text("response", Defect.EMPTY_RESPONSE)
    rating = fields.number("rating" if fields.has("rating") else "human_rating")
    if rating is not None and not 1 <= rating <= 10:
        fields.add(Defect.BAD_RATING, f"the rating must be from 1 to 10, got {rating:g}")
    domain = fields.text("culture_type" if fields.has("culture_type") else "cul_type")
    language = next((tag for tag, script in _LANGUAGES if re.search(script, question)), "")
    if question and not language:
        fields.add(Defect.UNKNOWN_LANGUAGE, "the question has no Arabic, Chinese or Japanese letter")
    said = fields.text("associated_culture")
    if fields.faults or rating is None:
        return None
    return _Rated(fields.row, question, response, rating, language, _culture(said), domain.lower())


def _culture(said: str) -> str:
    """`Native (Chinese)`, `Chinese` and `China` are CN; what is no country keeps its name."""
    people = said.partition("(")[2].rstrip(") ") or said
    return _PEOPLES.get(people.casefold()) or culture_code(people) or people

"""Open rows prepared for CARB's domains: JMMLU, EXAMS, FORK, XSafety, SQuARe and proverbs of Wikiquote.

Fields: `id, culture, language, domain, topic, source, license, group, prompt, chosen, rejected[]`; two to four
responses. XSafety's "English" and "Spanish-speaking" name no country.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from think_as_locals.data.fields import (
    Identifier,
    Language,
    Prompt,
    Response,
    Responses,
    RowModel,
    Text,
    check_country,
    field,
    shown,
)
from think_as_locals.data.rows import Defect, Fault, Outcome, Row

DOMAINS = {"commonsense": "commonsense", "value": "value", "safety": "safety", "linguistics": "linguistic"}
_CULTURES = {"English": None, "Spanish-speaking": None, "Arab (Qatar)": "QA"}


def _check_culture(name: str, value: Any, faults: list[Fault]) -> str | None:
    known = isinstance(value, str) and value in _CULTURES
    return _CULTURES[value] if known else check_country(name, value, faults)


class OpenRow(RowModel):
    """The fields of a row that are used."""

    FIELDS: ClassVar = ("id", "culture", "language", "domain", "source", "group", "prompt", "chosen", "rejected")

    id: Identifier
    group: Text
    prompt: Prompt
    chosen: Response
    domain: Text
    source: Text
    rejected: Responses
    culture: Annotated[str | None, field(_check_culture, None)]
    language: Language


def outcome(row: Row) -> Outcome:
    """Return one item of two to four responses, the chosen one the best."""
    fields = OpenRow.read(row)
    if fields.domain and fields.domain not in DOMAINS:
        fields.add(Defect.UNKNOWN_DOMAIN, f"domain {shown(fields.domain)}; known: {', '.join(DOMAINS)}")
    fields.check_counts(n=("chosen", "rejected"))
    items = fields.best_first(
        fields.chosen,
        fields.rejected,
        id=fields.id,
        prompt=fields.prompt,
        culture=fields.culture,
        language=fields.language,
        domain=DOMAINS.get(fields.domain, fields.domain),
        group=fields.group,
        source=f"carb_open/{fields.source}",
    )
    return fields.outcome(*items)

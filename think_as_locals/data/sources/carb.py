"""CARB's rows as published (arXiv 2509.21798), and open rows for its domains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

from think_as_locals.data.fields import (
    Country,
    Identifier,
    Language,
    Prompt,
    Response,
    Responses,
    RowModel,
    Text,
    check_country,
    check_text,
    field,
)
from think_as_locals.data.languages import other_countries
from think_as_locals.data.rows import Defect, Fault, Outcome, Row
from think_as_locals.types import shown

_SUBSETS = {
    "cultural_commonsense": "commonsense",
    "cultural_value": "value",
    "cultural_toxicity": "safety",
    "cultural_linguistic": "linguistic",
}
# fmt: off
_CULTURES = {  # by language, for rows that name no country
    "ar": "Arabic-speaking countries", "en": "English-speaking countries", "es": "Spanish-speaking countries",
    "de": "DE", "ja": "JP", "ko": "KR", "ru": "RU", "th": "TH", "vi": "VN", "zh": "CN",
}
# fmt: on
AXES = (
    ("Arabic", "Chinese", "English", "German", "Japanese", "Korean", "Russian", "Spanish", "Thai", "Vietnamese"),
    tuple(_SUBSETS.values()),
)
_OPEN_DOMAINS = {"commonsense": "commonsense", "value": "value", "safety": "safety", "linguistics": "linguistic"}
_OPEN_CULTURES = {"English": None, "Spanish-speaking": None, "Arab (Qatar)": "QA"}  # XSafety's
_BOTH = ("chosen", "rejected")
_COUNTS = {"num_correct": _BOTH[:1], "num_rejected": _BOTH[1:], "total_completions": _BOTH}


def _check_domain(name: str, value: Any, faults: list[Fault], domains: Mapping[str, str]) -> str:
    given = check_text(name, value, faults)
    if given and given not in domains:
        faults.append(Fault(Defect.UNKNOWN_DOMAIN, f"{name} {shown(given)}; known: {', '.join(domains)}"))
    return domains.get(given, given)


def _check_open_culture(name: str, value: Any, faults: list[Fault]) -> str | None:
    known = isinstance(value, str) and value in _OPEN_CULTURES
    return _OPEN_CULTURES[value] if known else check_country(name, value, faults)


class CarbRow(RowModel):
    """CARB as published (arXiv 2509.21798): Best-of-4. The language is an English name.

    The country is named in English, or by its people ("Thai"). If it is null, as in all rows of the subsets linguistic
    and toxicity, the culture is that of the language: a country, or e.g. "Arabic-speaking countries".
    """

    FIELDS: ClassVar = ("language", "country", "prompt", "chosen", "rejected", "subset")
    id: Identifier
    domain: Annotated[str, field(partial(_check_domain, domains=_SUBSETS), "")] = Field(validation_alias="subset")
    prompt: Prompt
    language: Language
    culture: Country = Field(None, validation_alias="country")
    chosen: Responses
    rejected: Responses
    additional_metadata: Any = None


class OpenRow(RowModel):
    """Open rows for CARB's domains, from JMMLU, EXAMS, FORK, XSafety, SQuARe and Wikiquote: two to four responses."""

    FIELDS: ClassVar = ("id", "culture", "language", "domain", "source", "group", "prompt", "chosen", "rejected")
    id: Identifier
    group: Text
    prompt: Prompt
    chosen: Response
    domain: Annotated[str, field(partial(_check_domain, domains=_OPEN_DOMAINS), "")]
    source: Text
    rejected: Responses
    culture: Annotated[str | None, field(_check_open_culture, None)]
    language: Language


def outcome(row: Row) -> Outcome:
    """Return one item; a prompt about another country is only a warning, so that results stay comparable."""
    fields = CarbRow.read(row)
    if fields.count_texts("chosen") not in (None, 1):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response, got {len(fields.chosen)}")
    fields.check_counts(**_COUNTS)
    if isinstance(fields.additional_metadata, str):
        try:
            json.loads(fields.additional_metadata)
        except (ValueError, RecursionError) as error:
            fields.add(Defect.BAD_METADATA, f"additional_metadata: {error}")
    if fields.culture and (named := other_countries(fields.prompt, fields.language, fields.culture)):
        message = f"the prompt names {', '.join(sorted(named))}, the row's country is {fields.culture}"
        fields.add(Defect.COUNTRY_MISMATCH, message)
    key = f"carb/{fields.domain}/{fields.language}/{fields.id}"
    best = fields.chosen[0] if fields.chosen else ""
    culture = fields.culture or _CULTURES.get(fields.language)
    return fields.outcome(*fields.best_first(best, fields.rejected, id=key, culture=culture, source="carb"))


def open_outcome(row: Row) -> Outcome:
    """Return one item."""
    fields = OpenRow.read(row)
    fields.check_counts(n=_BOTH)
    source = f"carb_open/{fields.source}"
    return fields.outcome(*fields.best_first(fields.chosen, fields.rejected, id=fields.id, source=source))

"""CARB's rows as published (arXiv 2509.21798), and open rows for its domains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from think_as_locals.data.fields import (
    Country,
    Identifier,
    Language,
    RowModel,
    Text,
    Texts,
    best_first,
    check_country,
    count_faults,
)
from think_as_locals.data.rows import Fault, Row
from think_as_locals.types import Item, shown

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


FIELDS = ("language", "country", "prompt", "chosen", "rejected", "subset")
OPEN_FIELDS = ("id", "culture", "language", "domain", "source", "group", "prompt", "chosen", "rejected")
"""The columns by which their rows are recognised."""


class CarbRow(RowModel):
    """CARB as published (arXiv 2509.21798): Best-of-4. The language is an English name.

    The country is named in English, or by its people ("Thai"). If it is null, as in all rows of the subsets linguistic
    and toxicity, the culture is that of the language: a country, or e.g. "Arabic-speaking countries".
    """

    id: Identifier
    subset: Text
    prompt: Text
    language: Language
    country: Country | None = None
    chosen: Annotated[Texts, Field(min_length=1, max_length=1)]
    rejected: Texts


class OpenRow(RowModel):
    """Open rows for CARB's domains, from JMMLU, EXAMS, FORK, XSafety, SQuARe and Wikiquote: two to four responses."""

    id: Identifier
    group: Text
    prompt: Text
    chosen: Text
    domain: Text
    source: Text
    rejected: Texts
    culture: Annotated[
        str, AfterValidator(lambda name: _OPEN_CULTURES[name] if name in _OPEN_CULTURES else check_country(name))
    ]
    language: Language


def items(row: Row) -> Iterator[Item | Fault]:
    """Yield one item."""
    fields = CarbRow.model_validate(row.value)
    wrong = len(fields.rejected)
    yield from count_faults(row.value, num_correct=1, num_rejected=wrong, total_completions=1 + wrong)
    yield from _domain_faults(fields.subset, _SUBSETS)
    domain = _SUBSETS.get(fields.subset, fields.subset)
    yield best_first(
        *(fields.chosen[0], fields.rejected),
        id=f"carb/{domain}/{fields.language}/{fields.id}",
        prompt=fields.prompt,
        culture=fields.country or _CULTURES.get(fields.language),
        language=fields.language,
        domain=domain,
        source="carb",
    )


def open_items(row: Row) -> Iterator[Item | Fault]:
    """Yield one item."""
    fields = OpenRow.model_validate(row.value)
    yield from count_faults(row.value, n=1 + len(fields.rejected))
    yield from _domain_faults(fields.domain, _OPEN_DOMAINS)
    yield best_first(
        *(fields.chosen, fields.rejected),
        **fields.model_dump(include={"id", "group", "prompt", "culture", "language"}),
        domain=_OPEN_DOMAINS.get(fields.domain, fields.domain),
        source=f"carb_open/{fields.source}",
    )


def _domain_faults(domain: str, known: Mapping[str, str]) -> Iterator[Fault]:
    if domain not in known:
        yield Fault("unknown_domain", f"domain {shown(domain)}; known: {', '.join(known)}")

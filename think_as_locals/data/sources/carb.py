"""CARB's published rows (arXiv 2509.21798): Best-of-4, one chosen and three rejected responses.

Published fields: `id, language, country, prompt, chosen[1], chosen_model, rejected[3], rejected_model[3], num_correct,
num_rejected, total_completions, source, subset, additional_metadata, category`. The language is an English name, the
country may be null. Public samples hold rows whose responses are in another language or run on into a second turn, and
rows whose prompt is about another country: these are imported with a warning, so that results stay comparable.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from think_as_locals.data.fields import Country, Identifier, Language, Prompt, Responses, RowModel, Text, shown
from think_as_locals.data.languages import countries_named
from think_as_locals.data.rows import Defect, Outcome, Row

DOMAINS = {
    "cultural_commonsense": "commonsense",
    "cultural_value": "value",
    "cultural_toxicity": "safety",
    "cultural_linguistic": "linguistic",
}


class CarbRow(RowModel):
    """The fields of a row that are used."""

    FIELDS: ClassVar = ("language", "country", "prompt", "chosen", "rejected", "subset")

    id: Identifier
    subset: Text
    prompt: Prompt
    language: Language
    country: Country = None
    chosen: Responses
    rejected: Responses
    additional_metadata: Any = None


def outcome(row: Row) -> Outcome:
    """Return one item. The rows name no question group, so the prompt is its own."""
    fields = CarbRow.read(row)
    if fields.count_texts("chosen") not in (None, 1):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response, got {len(fields.chosen)}")
    both = ("chosen", "rejected")
    fields.check_counts(num_correct=both[:1], num_rejected=both[1:], total_completions=both)
    if isinstance(fields.additional_metadata, str):
        try:
            json.loads(fields.additional_metadata)
        except (ValueError, RecursionError) as error:
            fields.add(Defect.BAD_METADATA, f"additional_metadata: {error}")
    if fields.subset and fields.subset not in DOMAINS:
        fields.add(Defect.UNKNOWN_DOMAIN, f"subset {shown(fields.subset)}; known: {', '.join(DOMAINS)}")
    if fields.country and fields.language:
        named = countries_named(fields.prompt, fields.language)
        if named and fields.country not in named:
            message = f"the prompt names {', '.join(sorted(named))}, the row's country is {fields.country}"
            fields.add(Defect.COUNTRY_MISMATCH, message)
    domain = DOMAINS.get(fields.subset, fields.subset)
    best = fields.chosen[0] if fields.chosen else ""
    items = fields.best_first(
        best,
        fields.rejected,
        id=f"carb/{domain}/{fields.language}/{fields.id}",
        prompt=fields.prompt,
        culture=fields.country,
        language=fields.language,
        domain=domain,
        source="carb",
    )
    return fields.outcome(*items)

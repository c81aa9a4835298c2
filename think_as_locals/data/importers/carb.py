"""CARB's published rows (arXiv 2509.21798): Best-of-4, one chosen and three rejected responses.

`id, language, country, prompt, chosen[1], chosen_model, rejected[3], rejected_model[3], num_correct, num_rejected,
total_completions, source, subset, additional_metadata, category`. The language is an English name, the country may be
null. Public samples have rows whose responses are in another language or run on into a second turn, and rows whose
prompt is about another country: these are imported, so that results compare, and named.
"""

from __future__ import annotations

import json

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, question_group, shown
from think_as_locals.data.names import countries_named
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.rows import Row

FIELDS = ("language", "country", "prompt", "chosen", "rejected", "subset")
DOMAINS = {
    "cultural_commonsense": "commonsense",
    "cultural_value": "value",
    "cultural_toxicity": "safety",
    "cultural_linguistic": "linguistic",
}


def outcome(row: Row) -> Outcome:
    """One item. Its question group is its prompt: the rows name none."""
    fields = Fields(row, FIELDS)
    identifier, subset = fields.identifier("id"), fields.text("subset")
    prompt = fields.text("prompt", Defect.EMPTY_PROMPT)
    language, culture = fields.language("language"), fields.culture("country")
    chosen, rejected = fields.texts("chosen"), fields.texts("rejected")
    if fields.length("chosen") not in (None, 1):
        fields.add(Defect.WRONG_COUNT, f"expected 1 chosen response, got {len(chosen)}")
    both = ("chosen", "rejected")
    fields.check_counts(num_correct=both[:1], num_rejected=both[1:], total_completions=both)
    _check_metadata(fields)
    if subset and subset not in DOMAINS:
        fields.add(Defect.UNKNOWN_DOMAIN, f"subset {shown(subset)}; known: {', '.join(DOMAINS)}")
    if culture and language:
        named = countries_named(prompt, language)
        if named and culture not in named:
            fields.add(
                Defect.COUNTRY_MISMATCH, f"the prompt names {', '.join(sorted(named))}, the row's country is {culture}"
            )
    domain = DOMAINS.get(subset, subset)
    items = fields.best_first(
        chosen[0] if chosen else "",
        rejected,
        id=f"carb/{domain}/{language}/{identifier}",
        prompt=prompt,
        culture=culture,
        language=language,
        domain=domain,
        group=question_group(prompt),
        source="carb",
    )
    return fields.outcome(*items)


def _check_metadata(fields: Fields) -> None:
    said = fields.value("additional_metadata") if fields.has("additional_metadata") else None
    if isinstance(said, str):
        try:
            json.loads(said)
        except (ValueError, RecursionError) as error:
            fields.add(Defect.BAD_METADATA, f"additional_metadata: {error}")

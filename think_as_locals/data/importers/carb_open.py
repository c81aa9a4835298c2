"""Open rows prepared for CARB's domains: JMMLU, EXAMS, FORK, XSafety, SQuARe and proverbs of Wikiquote.

`id, culture, language, domain, topic, source, license, group, prompt, chosen, rejected[]`, two to four responses.
XSafety's "English" and "Spanish-speaking" are no country.
"""

from __future__ import annotations

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, shown
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.rows import Row

FIELDS = ("id", "culture", "language", "domain", "source", "group", "prompt", "chosen", "rejected")
DOMAINS = {"commonsense": "commonsense", "value": "value", "safety": "safety", "linguistics": "linguistic"}
_LANGUAGES_ONLY = ("English", "Spanish-speaking")
_CULTURES = {"Arab (Qatar)": "QA"}


def outcome(row: Row) -> Outcome:
    """One item of two to four responses, the chosen one the best."""
    fields = Fields(row, FIELDS)
    identifier, group = fields.identifier("id"), fields.text("group")
    prompt, chosen = fields.text("prompt", Defect.EMPTY_PROMPT), fields.text("chosen", Defect.EMPTY_RESPONSE)
    said, source = fields.text("domain"), fields.text("source")
    if said and said not in DOMAINS:
        fields.add(Defect.UNKNOWN_DOMAIN, f"domain {shown(said)}; known: {', '.join(DOMAINS)}")
    rejected = fields.texts("rejected")
    fields.check_counts(n=("chosen", "rejected"))
    items = fields.best_first(
        chosen,
        rejected,
        id=identifier,
        prompt=prompt,
        culture=_culture(fields),
        language=fields.language("language"),
        domain=DOMAINS.get(said, said),
        group=group,
        source=f"carb_open/{source}",
    )
    return fields.outcome(*items)


def _culture(fields: Fields) -> str | None:
    said = fields.text("culture")
    if said in _LANGUAGES_ONLY:
        return None
    return _CULTURES.get(said) or (fields.culture("culture") if said else None)

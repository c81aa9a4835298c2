"""CRISP-RM's rows: a scenario of one culture with an appropriate, a generic and an opposite response."""

from __future__ import annotations

from typing import ClassVar

from pydantic import AliasChoices, Field

from think_as_locals.data.fields import Culture, Identifier, Language, Prompt, Response, RowModel, Text, question_group
from think_as_locals.data.rows import Outcome, Row


class CrispRow(RowModel):
    """CRISP-RM (arXiv 2609.34345, section 6), 19 cultures: triplets of an appropriate, a generic, an opposite response.

    A scenario makes a cultural norm relevant without naming it, and a question asks what to do; the scenarios of one
    norm are a question group. `culture`, `scenario`, `question` and `norm` are the names in the paper's prompts. The
    other column names are inferred, since no dataset card was available: most have an alternative, and columns that
    are not read are named in a warning. Rows without a language are in English.
    """

    FIELDS: ClassVar = ("culture", "question", "appropriate", "generic", "opposite")
    DEFAULTS: ClassVar = ("language", "domain")
    IGNORED_COLUMNS: ClassVar = ("norm_type", "chronotope")
    prompt: Prompt = Field(validation_alias=AliasChoices("prompt", "question"))
    scenario: Text = ""
    culture: Culture = Field(validation_alias=AliasChoices("country", "culture"))
    norm: Text = ""
    appropriate: Response = Field(validation_alias=AliasChoices("appropriate_response", "appropriate"))
    generic: Response = Field(validation_alias=AliasChoices("generic_response", "generic"))
    opposite: Response = Field(validation_alias=AliasChoices("opposite_response", "opposite"))
    language: Language = "en"
    domain: Text = Field("crisp_rm", validation_alias=AliasChoices("domain", "category"))
    id: Identifier = ""


def outcome(row: Row) -> Outcome:
    """Return one item of three responses; the appropriate one is the best."""
    fields = CrispRow.read(row)
    prompt = "\n\n".join(filter(None, (fields.scenario, fields.prompt)))
    place = {
        "id": f"crisp_rm/{fields.culture}/{fields.language}/{fields.id or row.name}",
        "group": f"{fields.culture}/{question_group(fields.norm or prompt)}",
    }
    rest = [fields.generic, fields.opposite]
    return fields.outcome(*fields.best_first(fields.appropriate, rest, prompt=prompt, source="crisp_rm", **place))

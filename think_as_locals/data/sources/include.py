"""INCLUDE's rows (arXiv 2411.19799, HF CohereLabs/include-base-44): exam questions with four options."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from think_as_locals.data.fields import Country, Language, Number, Prompt, Response, RowModel, Text
from think_as_locals.data.rows import Defect, Outcome, Row
from think_as_locals.types import reorder_responses


class IncludeRow(RowModel):
    """`answer` is the index of the right option; `domain` and `country` describe the exam."""

    FIELDS: ClassVar = ("question", "option_a", "option_b", "option_c", "option_d", "answer", "language", "country")

    prompt: Prompt = Field(validation_alias="question")
    option_a: Response
    option_b: Response
    option_c: Response
    option_d: Response
    answer: Number
    language: Language
    culture: Country = Field(None, validation_alias="country")
    domain: Text = "include"


def outcome(row: Row) -> Outcome:
    """Return one item of four responses, in the order of the options."""
    fields = IncludeRow.read(row)
    options = [fields.option_a, fields.option_b, fields.option_c, fields.option_d]
    if fields.answer not in range(len(options)):
        if not fields.faults:
            fields.add(Defect.BAD_BEST, f"answer must be an index from 0 to 3, got {fields.answer:g}")
        return fields.outcome()
    best = int(fields.answer)
    others = options[:best] + options[best + 1 :]
    items = fields.best_first(options[best], others, id=f"include/{row.name}", source="include")
    order = [*range(1, best + 1), 0, *range(best + 1, len(options))]
    return fields.outcome(*(reorder_responses(item, order) for item in items))

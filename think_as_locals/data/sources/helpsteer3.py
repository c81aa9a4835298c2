"""HelpSteer3's rows: two responses and a preference between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from think_as_locals.data.fields import Conversation, Culture, Language, Response, RowModel, Text, check_number, field
from think_as_locals.data.rows import Defect, Fault, Outcome, Row


def _check_preference(name: str, value: Any, faults: list[Fault]) -> float:
    number = check_number(name, value, faults)
    if number not in range(-3, 4) and not math.isnan(number):
        faults.append(Fault(Defect.BAD_RATING, f"{name} must be a whole number from -3 to 3, got {number:g}"))
    elif number == 0:
        faults.append(Fault(Defect.TIE, f"{name} is 0: about the same"))
    return number


class HelpSteerRow(RowModel):
    """HelpSteer3-Preference (arXiv 2505.11475, HF nvidia/HelpSteer3, config `preference`).

    A preference is a whole number from -3 (the first is much better) to 3 (the second is), 0 if about the same.
    """

    FIELDS: ClassVar = ("context", "response1", "response2", "overall_preference")
    DEFAULTS: ClassVar = ("culture",)
    domain: Text
    culture: Culture = None  # not published: HelpSteer3 has none
    language: Language
    prompt: Conversation = Field(validation_alias="context")
    response1: Response
    response2: Response
    overall_preference: Annotated[float, field(_check_preference, math.nan)]


def outcome(row: Row) -> Outcome:
    """Return one pair; the preferred response is the best."""
    if isinstance(row.value, Mapping) and row.value.get("domain") == "code":  # the language is a programming language
        row = row._replace(value={**row.value, "language": "en"})
    fields = HelpSteerRow.read(row)
    better, worse = fields.response1, fields.response2
    if fields.overall_preference > 0:
        better, worse = worse, better
    return fields.outcome(*fields.best_first(better, [worse], id=f"helpsteer3/{row.name}", source="helpsteer3"))

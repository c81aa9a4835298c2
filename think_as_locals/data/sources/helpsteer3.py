"""HelpSteer3-Preference (arXiv 2505.11475, HF nvidia/HelpSteer3, config `preference`).

Fields: `domain, language, context (messages of role and content), response1, response2, overall_preference,
individual_preference`. The preference is a whole number from -3 (the first is much better) to 3 (the second is), 0
where they are about the same. In the domain `code` the language is a programming language, so the prompts count as
English.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from think_as_locals.data.fields import Language, Response, RowModel, Text, check_number, field, shown
from think_as_locals.data.rows import Defect, Fault, Outcome, Row
from think_as_locals.types import is_text

_ROLES = ("system", "user", "assistant")


def _check_context(name: str, value: Any, faults: list[Fault]) -> str:
    """Read a conversation as a prompt: the text of a single message, else every turn after its role."""
    turns: list[tuple[str, str]] = []
    for i, message in enumerate(value if isinstance(value, list) else [value]):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str) and message.get("role") in _ROLES:
            turns.append((str(message["role"]), content))
        else:
            reason = f"{name}[{i}] must be a message with a role ({', '.join(_ROLES)}) and its content"
            faults.append(Fault(Defect.WRONG_TYPE, reason))
    if broken := [content for _, content in turns if content.strip() and not is_text(content)]:
        faults.append(Fault(Defect.BROKEN_TEXT, f"{name} holds half of a surrogate pair: {shown(broken[0])}"))
        return ""
    if not any(content.strip() for _, content in turns):
        faults.append(Fault(Defect.EMPTY_PROMPT, f"{name} is empty"))
    return turns[0][1] if len(turns) == 1 else "\n\n".join(f"{role}: {content}" for role, content in turns)


def _check_preference(name: str, value: Any, faults: list[Fault]) -> float:
    number = check_number(name, value, faults)
    if number not in range(-3, 4) and not math.isnan(number):
        faults.append(Fault(Defect.BAD_RATING, f"{name} must be a whole number from -3 to 3, got {number:g}"))
    elif number == 0:
        faults.append(Fault(Defect.TIE, f"{name} is 0: about the same"))
    return number


class HelpSteerRow(RowModel):
    """The fields of a row that are used."""

    FIELDS: ClassVar = ("context", "response1", "response2", "overall_preference")

    domain: Text
    language: Language
    context: Annotated[str, field(_check_context, "")]
    response1: Response
    response2: Response
    overall_preference: Annotated[float, field(_check_preference, math.nan)]


def outcome(row: Row) -> Outcome:
    """Return one pair, the preferred response the best."""
    if isinstance(row.value, Mapping) and row.value.get("domain") == "code":
        row = replace(row, value={**row.value, "language": "en"})
    fields = HelpSteerRow.read(row)
    better, worse = fields.response1, fields.response2
    if fields.overall_preference > 0:
        better, worse = worse, better
    common = {"language": fields.language, "domain": fields.domain, "source": "helpsteer3"}
    items = fields.best_first(better, (worse,), id=f"helpsteer3/{row.name}", prompt=fields.context, **common)
    return fields.outcome(*items)

"""HelpSteer3-Preference (arXiv 2505.11475, HF nvidia/HelpSteer3, config `preference`).

`domain, language, context (messages of role and content), response1, response2, overall_preference,
individual_preference`. The preference is a whole number from -3 (the first is much better) to 3 (the second is), 0
where they are about the same. In the domain `code` the language is one of programming; the prompts are taken for
English.
"""

from __future__ import annotations

from collections.abc import Mapping

from think_as_locals.data.defects import Defect
from think_as_locals.data.fields import Fields, question_group, shown
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.rows import Row
from think_as_locals.types import is_text

FIELDS = ("context", "response1", "response2", "overall_preference")
_ROLES = ("system", "user", "assistant")


def outcome(row: Row) -> Outcome:
    """One pair; of a conversation, the prompt is every turn with its role before it."""
    fields = Fields(row, FIELDS)
    domain = fields.text("domain")
    language = "en" if domain == "code" else fields.language("language")
    prompt = _conversation(fields)
    responses = [fields.text(name, Defect.EMPTY_RESPONSE) for name in ("response1", "response2")]
    preference = fields.number("overall_preference")
    if preference is not None and preference not in range(-3, 4):
        fields.add(Defect.BAD_RATING, f"overall_preference must be a whole number from -3 to 3, got {preference:g}")
    elif preference == 0:
        fields.add(Defect.TIE, "overall_preference is 0: about the same")
    if preference is not None and preference > 0:
        responses.reverse()
    items = fields.best_first(
        responses[0],
        responses[1:],
        id=f"helpsteer3/{row.name}",
        prompt=prompt,
        culture=None,
        language=language,
        domain=domain,
        group=question_group(prompt),
        source="helpsteer3",
    )
    return fields.outcome(*items)


def _conversation(fields: Fields) -> str:
    messages = fields.value("context")
    if messages is None:
        return ""
    turns = []
    for i, message in enumerate(messages if isinstance(messages, list) else [messages]):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, str) or message.get("role") not in _ROLES:
            fields.add(
                Defect.WRONG_TYPE, f"context[{i}] must be a message with a role ({', '.join(_ROLES)}) and its content"
            )
        else:
            turns.append((str(message["role"]), content))
    if broken := [content for _, content in turns if content.strip() and not is_text(content)]:
        fields.add(Defect.BROKEN_TEXT, f"context holds half of a surrogate pair: {shown(broken[0])}")
        return ""
    if not any(content.strip() for _, content in turns):
        fields.add(Defect.EMPTY_PROMPT, "context says nothing")
    if len(turns) == 1:
        return turns[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in turns)

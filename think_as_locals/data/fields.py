"""The types of fields of rows, for pydantic models of them, and how a row becomes an item."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic.functional_validators import field_validator, model_validator
from pydantic_core import PydanticCustomError

from think_as_locals.data.languages import culture_code, culture_fault, language_tag, named_culture, similar_country
from think_as_locals.data.rows import Fault, unpack
from think_as_locals.types import Item, is_text

_MESSAGES = re.compile(  # in any library's form, or pandas's; by a role: [{"from": "Rome"}] is an answer
    r"(?is)\s*(?:\[(?:[\s\[(]|array)*\{.*?|\{[^{}]*?)['\"](?:role|from)['\"]\s*:\s*"
    r"['\"](?:system|user|human|assistant|gpt|tool|model|(?:chat)?bot)['\"]"
)


class RowModel(BaseModel, populate_by_name=True):
    """The fields of a row: null counts as missing, other columns are not read."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, row: Any) -> Any:
        return {name: value for name, value in row.items() if value is not None} if isinstance(row, Mapping) else row

    @field_validator("prompt", "chosen", "rejected", "response", "responses", check_fields=False)
    @classmethod
    def _refuse_messages(cls, value: Any) -> Any:
        for each in [value] if isinstance(value, str) else value:
            if _MESSAGES.match(getattr(each, "content", each)):
                known = "messages (role: system, user or assistant; content: a text) that part at the answers"
                raise PydanticCustomError("messages", f"expected a text, or for data=rows JSON of {known}")
        return value


def _join_parts(value: Any) -> Any:
    """Join the parts of a text as chat APIs write it, also in a cell: `[{"type": "text", "text": "..."}]`."""
    if isinstance(value, str) and value.startswith(('[{"type"', "[{'type'")):
        found = _join_parts(unpack(value))
        return found if isinstance(found, str) else value
    if isinstance(value, list) and value and all(isinstance(p, Mapping) and p.get("type") == "text" for p in value):
        return "".join(str(part.get("text") or "") for part in value)
    return value


class Turn(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_join_parts)]


def _check_text(text: str) -> str:
    if is_text(text):
        return text
    if text.strip():
        raise PydanticCustomError("broken_text", "must not hold half of a surrogate pair")
    raise PydanticCustomError("blank", "must not be blank")


def _check_language(name: str) -> str:
    if (tag := language_tag(name)) is None:
        raise PydanticCustomError("unknown_language", "expected an English name or a BCP-47 tag (Min Nan: nan-Hant)")
    return tag


def check_country(name: str) -> str:
    """Read the name of a country or of its people, or an ISO 3166 code, as the code."""
    if code := culture_code(name):
        return code
    similar = similar_country(name)
    hint = f"; did you mean {similar!r}?" if similar else ""
    message = "expected the name of a country or of its people, or an ISO 3166 code{hint}"
    raise PydanticCustomError("unknown_culture", message, {"hint": hint})


def _check_culture(name: str) -> str:
    """Read the name of a country as its code; a region's code and a free name stay as they are."""
    culture = named_culture(name)
    if fault := culture_fault(culture):
        raise PydanticCustomError("unknown_culture", "{fault}", {"fault": fault})
    return culture


def _as_list(value: Any) -> Any:
    """Read a text as a list of one, unless it is a list of texts as JSON or pandas writes it: `[1, 2]` is an answer."""
    value = _join_parts(value)
    if not isinstance(value, str):
        return value
    found = unpack(value)
    if isinstance(found, list):
        found = [_join_parts(each) for each in found]
    if isinstance(found, list) and (not found or any(isinstance(each, str) for each in found)):
        return found
    # The beginning of a list that could not be parsed, printed by numpy or cut off, is no response.
    return value if value.startswith(("['", '["')) else [value]


def as_turns(value: Any) -> Any:
    """Parse a text that holds messages or the parts of one: other lists are a prompt."""
    found = _join_parts(unpack(value))
    messages = isinstance(found, list) and all(isinstance(turn, Mapping) and "role" in turn for turn in found)
    return found if (messages and found) or isinstance(found, str) else value


def _check_turns(turns: list[Turn]) -> list[Turn]:
    _check_text("".join(turn.content for turn in turns))
    return turns


# Neither blank nor with half of a surrogate pair.
Text = Annotated[str, BeforeValidator(_join_parts), AfterValidator(_check_text)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_list)]
Prompt = Annotated[  # a text, or a conversation
    Annotated[Text, Tag("text")] | Annotated[list[Turn], AfterValidator(_check_turns), Tag("messages")],
    Discriminator(lambda value: "messages" if isinstance(value, list) else "text"),
    BeforeValidator(as_turns),
]
Identifier = Annotated[str, Field(coerce_numbers_to_str=True), AfterValidator(_check_text)]
Language = Annotated[Text, AfterValidator(_check_language)]  # an English name or a tag, read as a BCP-47 tag
Country = Annotated[Text, AfterValidator(check_country)]  # a name or a code, read as an ISO 3166 code
Culture = Annotated[Text, AfterValidator(_check_culture)]  # the same, or a region or a free name


def best_first(chosen: str, rejected: Sequence[str], **fields: Any) -> Item:
    """Return an item whose first response is the best; without a group, the same words are the same question.

    Worse responses of the same text are one.
    """
    given = {"culture": None, "language": "en", "group": question_group(fields["prompt"]), **fields}
    return Item(responses=(chosen, *dict.fromkeys(rejected)), best=0, **given)


def count_faults(row: Mapping[str, Any], **counts: int) -> Iterator[Fault]:
    """Yield a warning for each count that a row gives (the keyword) and that differs from what it has."""
    for name, count in counts.items():
        if row.get(name) not in (None, count, str(count)):
            yield Fault("count_mismatch", f"{name} is {row[name]}, but there are {count}")


def question_group(prompt: str) -> str:
    """Return the question group of a prompt in a data set without groups: the same for the same words."""
    folded = " ".join(prompt.casefold().split())
    return f"prompt-{hashlib.sha256(folded.encode()).hexdigest()[:16]}"

"""Requests, answers and errors of the server, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.exceptions import HTTPException

from think_as_locals.config.model_schema import LimitsSection
from think_as_locals.data.languages import culture_code, culture_fault, named_culture
from think_as_locals.data.sources.jsonl import PLACEHOLDERS
from think_as_locals.types import LABELS, Criterion, DataError, Item, shown

OPENAI_ROOT = "/v1/"
_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_MAX_ERRORS = 10


class ErrorDetail(BaseModel):
    """One thing that is wrong."""

    place: str
    got: str
    expected: str


class ErrorAnswer(BaseModel):
    """The body of every answer that is not 200, outside /v1."""

    errors: list[ErrorDetail]


class OpenAIError(BaseModel):
    """An error in OpenAI's format; `param` is the place."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorAnswer(BaseModel):
    """The body of every answer under /v1 that is not 200."""

    error: OpenAIError


class RequestError(HTTPException):
    """A refused request: HTTP status, place (`body`, `items[0].prompt`), got, expected, and headers of the answer."""

    def __init__(
        self, status: int, place: str, got: str, expected: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail=expected, headers=headers)
        self.error = ErrorDetail(place=place, got=got, expected=expected)

    def response(self, path: str) -> JSONResponse:
        """Return the answer of a route."""
        return _error_response(path, self.status_code, [self.error], self.headers)


def _error_response(
    path: str, status: int, faults: Sequence[ErrorDetail], headers: Mapping[str, str] | None = None
) -> JSONResponse:
    answer: BaseModel = ErrorAnswer(errors=list(faults))
    if path.startswith(OPENAI_ROOT):
        message = "; ".join(f"{fault.place}: got {fault.got}, expected {fault.expected}" for fault in faults)
        kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        answer = OpenAIErrorAnswer(error=OpenAIError(message=message, type=kind, param=faults[0].place, code=None))
    return JSONResponse(answer.model_dump(), status, headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer any error in the format of its route."""
    path = request.url.path
    match error:
        case RequestError():
            found = error
        case HTTPException():  # an unknown route or method
            got = shown(f"{request.method} {path}")
            expected = "a route of /openapi.json, by its method" if error.status_code in (404, 405) else error.detail
            found = RequestError(error.status_code, "request", got, expected, error.headers)
        case RequestValidationError():
            return _error_response(path, 422, [_invalid(fault) for fault in error.errors()[:_MAX_ERRORS]])
        case DataError():
            found = RequestError(422, "body", "what cannot be judged", _encodable(str(error)))
        case _:
            found = RequestError(500, "server", type(error).__name__, "an answer; its log says more")
    return found.response(path)


def _invalid(fault: Mapping[str, Any]) -> ErrorDetail:
    """Return a pydantic error with its place, such as `("body", "items", 0, "prompt")`, as `items[0].prompt`."""
    start, *path = fault["loc"]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return ErrorDetail(
        place=_encodable(place.removeprefix(".")[:100]) or str(start),  # keys are the client's own
        got=shown(fault.get("input")),
        expected=fault["msg"].removeprefix("Input should be ").removeprefix("Value error, "),
    )


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def check_length(place: str, text: str, limits: LimitsSection) -> None:
    """Raise a RequestError if a text is too long."""
    if len(text) > limits.text_characters:
        raise RequestError(413, place, f"{len(text)} characters", f"at most {limits.text_characters}")


Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"\S")]


class Message(BaseModel):
    """JSON with these fields and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JudgeItem(Message):
    """A prompt and the responses to choose from.

    `culture` (a code, a country's name or a free name) is required, but may be null, for nowhere in particular. Other
    fields of training rows are allowed and ignored: a judge is not told the best response.
    """

    prompt: Text
    responses: Annotated[
        list[Text], Field(min_length=2, max_length=len(LABELS), json_schema_extra={"uniqueItems": True})
    ]
    culture: Name | None
    id: Name | None = None
    language: Name = "und"
    best: Any = None
    domain: Any = None
    group: Any = None
    source: Any = None
    origins: Any = None

    @field_validator("culture")
    @classmethod
    def _check_culture(cls, culture: str | None) -> str | None:
        named = culture and named_culture(culture)
        if named and (fault := culture_fault(named)):
            raise ValueError(fault.removeprefix("expected "))
        return named

    def item(self, default_id: str) -> Item:
        """Return the `Item`; a `DataError` if two responses are equal or one is blank."""
        fields = self.model_dump(include={"prompt", "responses", "culture", "language"})
        return Item(id=self.id or default_id, **PLACEHOLDERS, **fields)


class JudgeRequest(Message):
    """Items to judge."""

    items: Annotated[list[JudgeItem], Field(min_length=1)]


class Verdict(Message):
    """The judgement of one item.

    Args:
        id: As in the request.
        verdict: Index of the chosen response in the order of the request; null without a verdict.
        label: The judge's label for it.
        order: Indices of the responses in the order in which the judge saw them: the first is its A, and so on. Rubric
            and analysis use these labels.
        rubric: The criteria; null if they cannot be parsed.
        analysis: The analysis.
        issues: The rules of the format that the judge broke; at least one without a verdict.
        completion: All that the judge wrote.
    """

    id: str
    verdict: int | None
    label: str | None
    order: list[int]
    rubric: list[Criterion] | None
    analysis: str | None
    issues: list[str]
    completion: str


class JudgeAnswer(Message):
    """A verdict for each item, in their order."""

    judgements: list[Verdict]


class Label(Message):
    """What is known about a prompt of /score.

    Args:
        culture: ISO 3166 code, or a country's name in any of CARB's ten languages.
        language: BCP-47 tag.
        question: The user's question, if `prompts` carry a chat template.
        reference: A response that competes with those of the policy; empty for none.
    """

    culture: Name | None = None
    language: Name = "und"
    question: Text | None = None
    reference: str = ""

    @classmethod
    def read(cls, value: str | Label | None, place: str) -> Label:
        """Read a label: an object, the same as JSON text, a culture, or nothing (null or an empty text)."""
        try:
            if isinstance(value, Label):
                label = value
            elif value and value.lstrip().startswith("{"):
                label = cls.model_validate(json.loads(value))
            else:
                label = cls(culture=value or None)
        except (ValueError, RecursionError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "no JSON"
            expected = f"an object with {', '.join(cls.model_fields)}, a culture, or null ({reason})"
            raise RequestError(422, place, shown(value), expected) from None
        if label.culture is None:
            return label
        code = culture_code(label.culture)
        if code is None and (label.culture == value or culture_fault(label.culture)):  # a bare text may be anything
            expected = 'ISO 3166 code or name of a country, or {"culture": ...} with another culture\'s name'
            raise RequestError(422, place, shown(label.culture), expected)
        return label.model_copy(update={"culture": code or label.culture})


class ScoreRequest(Message):
    """OpenRLHF's request to a remote reward model; the lists have the same length.

    Args:
        query: Prompt and response, as one text.
        prompts: The beginning of each; what follows is the response.
        labels: What is known about each prompt (`Label`); null if nothing is known of any.
    """

    query: Annotated[list[str], Field(min_length=1)]
    prompts: Annotated[list[Text], Field(min_length=1)]
    labels: list[str | Label | None] | None = None


class ExtraLogs(Message):
    """What OpenRLHF logs with the rewards.

    Args:
        judged: 0 if nothing could be parsed of what the judge wrote about a response, or its group did not come in time
            and it had nothing to compare with; its reward is then 1/2.
        group_size: How many responses were judged together.
        order_disagreement: Share of its comparisons in which the judge chose otherwise in the other order, which counts
            1/2: with 1 the reward is 1/2 and says nothing but that. 0 with one order and for ratings.
    """

    judged: list[float]
    group_size: list[float]
    order_disagreement: list[float]


class ScoreAnswer(Message):
    """The answer of a remote reward model to OpenRLHF, a number for each query.

    Args:
        rewards: From 0 to 1: the share of comparisons won, or the rating on its scale.
        scores: The same; OpenRLHF filters prompts by these.
        extra_logs: What OpenRLHF logs.
    """

    rewards: list[float]
    scores: list[float]
    extra_logs: ExtraLogs

"""Requests and answers of the server, as JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import from_json

from think_as_locals.data.fields import Culture, Language, check_country
from think_as_locals.data.sources.jsonl import UNSEEN
from think_as_locals.types import LABELS, Criterion, Item


def invalid(message: str, *place: str | int) -> RequestValidationError:
    """Return the error of a request that cannot be judged, in FastAPI's form."""
    return RequestValidationError([{"type": "value_error", "loc": ("body", *place), "msg": message}])


async def answer_invalid(_: Request, error: Exception) -> Response:
    """Answer as FastAPI does, but without the input, which may not be encodable, and with a message for `openai`."""
    faults = error if isinstance(error, RequestValidationError) else invalid(str(error))
    detail = [{name: fault[name] for name in ("type", "loc", "msg")} for fault in faults.errors()]
    message = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in detail)
    return Response(json.dumps({"message": message, "detail": detail}), 422, media_type="application/json")


Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"\S")]


class Message(BaseModel):
    """JSON with these fields and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JudgeItem(Message):
    """A prompt and the responses to choose from.

    `culture` (a code, a country's name or a free name) is required, but may be null, for nowhere in particular, and
    `language` a tag or a name. Other fields of training rows are ignored: a judge is not told the best response.
    """

    prompt: Text
    responses: Annotated[list[Text], Field(min_length=2, max_length=len(LABELS))]
    culture: Culture | None
    id: Name | None = None
    language: Language = "und"
    best: Any = None
    domain: Any = None
    group: Any = None
    source: Any = None
    origins: Any = None
    turns: Any = None

    def item(self, default_id: str) -> Item:
        """Return the `Item`; a `DataError` if two responses are equal or one is blank."""
        fields = self.model_dump(include={"prompt", "responses", "culture", "language"})
        return Item(id=self.id or default_id, **UNSEEN, **fields)


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
        culture: ISO 3166 code, a country's name, or another culture's.
        language: BCP-47 tag, or an English name.
        question: The user's question, if `prompts` carry a chat template.
        reference: A response that competes with those of the policy; empty for none.
    """

    culture: Culture | None = None
    language: Language = "und"
    question: Text | None = None
    reference: str = ""


def _read_label(value: Any) -> Any:
    """Read a text as a label in JSON, or as its country; an empty one is none."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return from_json(value.encode())
    return {"culture": check_country(value)} if value else None


class ScoreRequest(Message):
    """OpenRLHF's request to a remote reward model; the lists have the same length.

    Args:
        query: Prompt and response, as one text.
        prompts: The beginning of each; what follows is the response.
        labels: What is known about each prompt: a `Label`, its JSON, a country, or null.
    """

    query: Annotated[list[str], Field(min_length=1)]
    prompts: Annotated[list[Text], Field(min_length=1)]
    labels: list[Annotated[Label | None, BeforeValidator(_read_label, str | Label | None)]] | None = None


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

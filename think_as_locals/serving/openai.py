"""The judge as a model of OpenAI's API: /v1/models and /v1/chat/completions.

A conversation is completed as it is, for clients that render and parse themselves, such as
`Judge.load(..., base_url=...)`. Answers are complete, and greedy unless a temperature is given, as `tal demonstrate`
does; other options that would change them are refused.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import FastAPI
from openai.types.chat import ChatCompletion
from pydantic import Field, PositiveInt
from starlette.concurrency import run_in_threadpool

from think_as_locals.config.schema import Seed
from think_as_locals.engines.engine import EVERY_TEMPLATE, Messages, Sampling, sample_all
from think_as_locals.reward_models.judge import Judge
from think_as_locals.serving.messages import Message, invalid
from think_as_locals.types import shown

Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]
Off = Literal[False] | None


class ChatText(Message):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Message):
    """A message: a text, or parts that are texts."""

    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[ChatText], Field(min_length=1)]
    name: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(Message):
    """OpenAI's request for a chat completion, as far as a judge can honour it.

    Args:
        model: As /v1/models calls it.
        messages: A conversation, as `render` writes it: a system message or none, then user and assistant in turns.
        max_tokens: At most the judge's own limit, which is the default.
        temperature: 0, greedy, is the default.
        seed: Of the sampling; without one it is drawn anew.
    """

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None
    top_p: One | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    stream: Off = None
    logprobs: Off = None
    chat_template_kwargs: dict[str, Any] | None = None  # the judge's own
    user: str | None = None  # for a provider's records


def add_routes(app: FastAPI, judge: Judge, name: str) -> None:
    """Add the routes of a listwise judge, as a model with the given name."""
    model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "think-as-locals"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.post("/v1/chat/completions", response_model_exclude_unset=True)
    async def complete(request: ChatRequest) -> ChatCompletion:
        if request.model != name:
            raise invalid(f"got {shown(request.model)}, expected {name!r}, the only model here", "model")
        own = dict(judge.settings.chat_template_kwargs)
        if (given := request.chat_template_kwargs) not in (None, own):
            raise invalid(f"got {shown(given)}, expected the judge's {own}", "chat_template_kwargs")
        most = judge.settings.max_completion_length
        requested = request.max_completion_tokens or request.max_tokens or most
        if requested > most:
            message = f"got {requested}, expected at most {most}, with which this judge was trained"
            raise invalid(message, "max_tokens")
        sampling = Sampling(max_completion_length=requested)
        if request.temperature:  # greedy requests have the same sampling, and so share batches
            seed = random.randrange(2**31) if request.seed is None else request.seed
            sampling = replace(sampling, temperature=request.temperature, seed=seed)
        messages = _conversation(request.messages, judge.engine.special_tokens)
        (rollout,) = await run_in_threadpool(sample_all, judge.engine, [messages], sampling)
        written = {"role": "assistant", "content": rollout.text, "refusal": None}
        ended = "stop" if rollout.finish_reason == "stop" else "length"
        prompt, completion = rollout.prompt_tokens, len(rollout.token_ids)
        answer = {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": name,
            "choices": [{"index": 0, "message": written, "finish_reason": ended, "logprobs": None}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
        }
        return ChatCompletion.model_validate(answer)


def _conversation(messages: list[ChatMessage], special_tokens: tuple[str, ...]) -> Messages:
    """Return messages for an engine, unless they hold control tokens, which only a chat template may write."""
    if not EVERY_TEMPLATE.fullmatch(" ".join(message.role for message in messages)):
        raise invalid("expected a system message or none, then user and assistant in turns", "messages")
    for i, message in enumerate(messages):
        if token := next((token for token in special_tokens if len(token.strip()) > 1 and token in message.text), None):
            raise invalid(f"got the model's control token {token!r}", "messages", i, "content")
    return [{"role": message.role, "content": message.text} for message in messages]

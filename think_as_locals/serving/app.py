"""The app: three routes before one engine.

POST /judge   items -> verdicts, each with its rubric and analysis
POST /score   responses of a policy -> rewards (OpenRLHF's remote reward model)
GET  /health  whether it is up
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, Literal

import anyio.to_thread
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from think_as_locals.generation.micro_batches import MicroBatches
from think_as_locals.models.generative_rm import GenerativeRM
from think_as_locals.models.group_reward import GroupReward
from think_as_locals.models.prediction import Prediction
from think_as_locals.models.protocols import JudgingProtocol
from think_as_locals.models.reward_model import Answer
from think_as_locals.serve_schema import LimitsSection, ServeConfig
from think_as_locals.serving.faults import Faults, Refusal, add_handlers
from think_as_locals.serving.gate import Gate
from think_as_locals.serving.messages import (
    JudgeAnswer,
    JudgeRequest,
    Label,
    ScoreAnswer,
    ScoreRequest,
    Verdict,
    WeightedCriterion,
)
from think_as_locals.serving.rewards import Rewards
from think_as_locals.types import LABELS, Item

_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Faults, "description": "The body is no JSON."},
    401: {"model": Faults, "description": "The key is missing, or another one."},
    408: {"model": Faults, "description": "The body did not come in time."},
    413: {"model": Faults, "description": "The request is too long."},
    422: {"model": Faults, "description": "The request cannot be judged as it is."},
    429: {"model": Faults, "description": "The client sends too much; Retry-After says when it may again."},
    500: {"model": Faults, "description": "The engine failed."},
    503: {"model": Faults, "description": "Too much is under way; Retry-After says when to try again."},
}


class Health(BaseModel):
    """The answer of /health."""

    status: Literal["ok"]


def create_app(rm: GenerativeRM, config: ServeConfig, key: str | None) -> FastAPI:
    """The app before a judge.

    Args:
        rm: A listwise judge in one order; its completer is called by no one else while the app runs.
        config: Limits, and how responses are rewarded.
        key: That each request but to /health has to carry; `None` asks for none.

    Raises:
        ConfigError: `score.prompt` and `score.protocol` do not go together.
    """
    batches = MicroBatches(rm.completer, config.window_s, config.judge.chunk_size)
    rm = replace(rm, completer=batches)
    section, limits = config.score, config.limits
    protocol = JudgingProtocol(kind=section.protocol, orders=section.orders, convention=rm.protocol.convention)
    scoring = GroupReward(replace(rm, protocol=protocol, prompt=section.prompt or rm.prompt))
    rewards = Rewards(scoring, section, batches.special_tokens)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Each request that is let in has a thread to wait in, or micro-batches would be as small as the pool.
        anyio.to_thread.current_default_thread_limiter().total_tokens = limits.requests_at_once
        yield
        await run_in_threadpool(batches.close)

    app = FastAPI(title="Think-as-Locals judge", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Gate, limits=limits, key=key)
    add_handlers(app)

    @app.get("/health")
    async def health() -> Health:
        return Health(status="ok")

    @app.post("/judge", responses=_REFUSALS)
    async def judge(request: JudgeRequest) -> JudgeAnswer:
        _check_items(request, limits)
        items = [given.item(place) for place, given in enumerate(request.items)]
        return JudgeAnswer(judgements=await run_in_threadpool(_verdicts, rm, items))

    @app.post("/score", responses=_REFUSALS)
    async def score(request: ScoreRequest) -> ScoreAnswer:
        _check_rows(request, limits)
        return await rewards.answer(request)

    return app


def _verdicts(rm: GenerativeRM, items: Sequence[Item]) -> list[Verdict]:
    """Judge items in one call of the completer."""
    requests = [request for item in items for request in rm.requests(item)]
    answers: dict[int, Answer] = {}
    rm.ask(requests, answers.__setitem__)
    return [
        _verdict(prediction)
        for place, item in enumerate(items)
        for prediction in rm.predictions(item, [answers[place]])
    ]


def _verdict(prediction: Prediction) -> Verdict:
    judgement, rubric = prediction.judgement, prediction.judgement.rubric
    order = [prediction.item.responses.index(response) for response in prediction.shown.responses]
    chosen = judgement.verdict
    return Verdict(
        verdict=None if chosen is None else order[chosen],
        label=None if chosen is None else LABELS[chosen],
        order=order,
        rubric=None if rubric is None else [WeightedCriterion(**asdict(each)) for each in rubric.criteria],
        analysis=judgement.analysis,
        issues=list(judgement.issues),
    )


def _check_items(request: JudgeRequest, limits: LimitsSection) -> None:
    if len(request.items) > limits.items:
        raise Refusal(413, "items", f"{len(request.items)} items", f"at most {limits.items}")
    for i, item in enumerate(request.items):
        _check_text(f"items[{i}].prompt", item.prompt, limits)
        for j, response in enumerate(item.responses):
            _check_text(f"items[{i}].responses[{j}]", response, limits)


def _check_rows(request: ScoreRequest, limits: LimitsSection) -> None:
    lengths = {"query": len(request.query), "prompts": len(request.prompts)}
    if request.labels is not None:
        lengths["labels"] = len(request.labels)
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise Refusal(422, "body", got, "as many of each")
    if len(request.query) > limits.responses:
        raise Refusal(413, "query", f"{len(request.query)} responses", f"at most {limits.responses}")
    for i, query in enumerate(request.query):
        _check_text(f"query[{i}]", query, limits)
    for i, label in enumerate(request.labels or []):
        said = f"{label.question}{label.reference}" if isinstance(label, Label) else label or ""
        _check_text(f"labels[{i}]", said, limits)


def _check_text(place: str, text: str, limits: LimitsSection) -> None:
    if len(text) > limits.text_characters:
        raise Refusal(413, place, f"{len(text)} characters", f"at most {limits.text_characters}")

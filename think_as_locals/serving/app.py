"""The routes of one judge: /judge (items -> verdicts), /score (OpenRLHF's remote reward model) and /health."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, Literal

import anyio.to_thread
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from think_as_locals.config.schema import LimitsSection, ServeConfig
from think_as_locals.engines.batching import MicroBatches
from think_as_locals.reward_models.group import GroupReward
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.serving.errors import ErrorAnswer, RequestError, add_error_handlers
from think_as_locals.serving.gate import Gate
from think_as_locals.serving.group_scorer import GroupScorer
from think_as_locals.serving.messages import (
    JudgeAnswer,
    JudgeRequest,
    Label,
    ScoreAnswer,
    ScoreRequest,
    Verdict,
    WeightedCriterion,
)
from think_as_locals.types import LABELS

_ERRORS = {
    400: "The body is not JSON.",
    401: "The key is missing or wrong.",
    408: "The body did not arrive in time.",
    413: "The request is too long.",
    422: "The request cannot be judged.",
    429: "The client sends too many requests; Retry-After says when to try again.",
    500: "The engine failed.",
    503: "Too many requests are in flight; Retry-After says when to try again.",
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description} for status, description in _ERRORS.items()
}


class Health(BaseModel):
    """The answer of /health."""

    status: Literal["ok"]


def create_app(judge: Judge, config: ServeConfig, key: str | None) -> FastAPI:
    """Return the app of a listwise judge in one order; nothing else may call its engine while the app runs."""
    batches = MicroBatches(judge.engine, config.window_s, config.judge.chunk_size)
    judge = replace(judge, engine=batches)
    section, limits = config.score, config.limits
    protocol = JudgingProtocol(kind=section.protocol, orders=section.orders, convention=judge.protocol.convention)
    settings = replace(judge.settings, prompt=section.prompt or judge.settings.prompt)
    scoring = GroupReward(replace(judge, protocol=protocol, settings=settings))
    scorer = GroupScorer(scoring, section, batches.special_tokens)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A thread for each admitted request, or micro-batches would be no larger than the thread pool.
        anyio.to_thread.current_default_thread_limiter().total_tokens = limits.requests_at_once
        yield
        await run_in_threadpool(batches.close)

    app = FastAPI(title="Think-as-Locals judge", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Gate, limits=limits, key=key)
    add_error_handlers(app)

    @app.get("/health")
    async def health() -> Health:
        return Health(status="ok")

    @app.post("/judge", responses=_RESPONSES)
    async def judge_items(request: JudgeRequest) -> JudgeAnswer:
        _check_items(request, limits)
        items = [given.item(place) for place, given in enumerate(request.items)]
        return JudgeAnswer(judgements=[_verdict(each) for each in await run_in_threadpool(judge.predict, items)])

    @app.post("/score", responses=_RESPONSES)
    async def score_responses(request: ScoreRequest) -> ScoreAnswer:
        _check_rows(request, limits)
        return await scorer.score(request)

    return app


def _verdict(prediction: ScoredItem) -> Verdict:
    judgement, rubric = prediction.judgement, prediction.judgement.rubric
    order = [prediction.item.responses.index(response) for response in prediction.presented.responses]
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
        raise RequestError(413, "items", f"{len(request.items)} items", f"at most {limits.items}")
    for i, item in enumerate(request.items):
        _check_length(f"items[{i}].prompt", item.prompt, limits)
        for j, response in enumerate(item.responses):
            _check_length(f"items[{i}].responses[{j}]", response, limits)


def _check_rows(request: ScoreRequest, limits: LimitsSection) -> None:
    lengths = {"query": len(request.query), "prompts": len(request.prompts)}
    if request.labels is not None:
        lengths["labels"] = len(request.labels)
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise RequestError(422, "body", got, "as many of each")
    if len(request.query) > limits.responses:
        raise RequestError(413, "query", f"{len(request.query)} responses", f"at most {limits.responses}")
    for i, query in enumerate(request.query):
        _check_length(f"query[{i}]", query, limits)
    for i, label in enumerate(request.labels or []):
        text = f"{label.question}{label.reference}" if isinstance(label, Label) else label or ""
        _check_length(f"labels[{i}]", text, limits)


def _check_length(place: str, text: str, limits: LimitsSection) -> None:
    if len(text) > limits.text_characters:
        raise RequestError(413, place, f"{len(text)} characters", f"at most {limits.text_characters}")

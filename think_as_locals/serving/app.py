"""The routes of one judge, /judge (items -> verdicts), /score (OpenRLHF) and /health, and the gate before them."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, Literal

import anyio.to_thread
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from think_as_locals.config.schema import LimitsSection, ServeConfig
from think_as_locals.engines.batching import MicroBatches
from think_as_locals.reward_models.group import GroupReward
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.serving.group_scorer import GroupScorer
from think_as_locals.serving.messages import (
    ErrorAnswer,
    JudgeAnswer,
    JudgeRequest,
    Label,
    RequestError,
    ScoreAnswer,
    ScoreRequest,
    Verdict,
    WeightedCriterion,
    answer_error,
)
from think_as_locals.types import LABELS, DataError

_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "The body is not JSON.",
        401: "The key is missing or wrong.",
        408: "The body did not arrive in time.",
        413: "The request is too long.",
        422: "The request cannot be judged.",
        429: "The client sends too many requests; Retry-After says when to try again.",
        500: "The engine failed.",
        503: "Too many requests are in flight; Retry-After says when to try again.",
    }.items()
}
_OPEN_ROUTE = "/health"
_MINUTE = 60.0
_MAX_CLIENTS = 4096  # remembered before those that have been idle are forgotten


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

    errors = (HTTPException, RequestValidationError, DataError, Exception)
    app = FastAPI(
        title="Think-as-Locals judge",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        exception_handlers=dict.fromkeys(errors, answer_error),
    )
    app.add_middleware(Gate, limits=limits, key=key)

    @app.get(_OPEN_ROUTE)
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
    columns = {"query": request.query, "prompts": request.prompts, "labels": request.labels}
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
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


class Gate:
    """ASGI middleware that refuses requests beyond the limits or without the key as bearer token; /health is open."""

    def __init__(self, app: ASGIApp, limits: LimitsSection, key: str | None) -> None:
        self._app = app
        self._limits = limits
        self._authorization = None if key is None else f"Bearer {key}".encode()
        self._rate = Rate(limits.requests_per_minute)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] == _OPEN_ROUTE:
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RequestError as error:
            await error.response()(scope, receive, send)
            return
        self._in_flight += 1
        try:
            await self._app(scope, _limit_body(receive, self._limits), send)
        finally:
            self._in_flight -= 1

    def _check(self, scope: Scope) -> None:
        client = scope["client"][0] if scope.get("client") else ""
        # Before the key, so that guesses at it are limited as well.
        if wait := self._rate.wait_s(client, time.monotonic()):
            expected = f"at most {self._limits.requests_per_minute} requests in a minute; try again in {wait:.1f} s"
            headers = {"Retry-After": str(math.ceil(wait))}
            raise RequestError(429, "request", "more requests than one client may send", expected, headers)
        authorization = Headers(scope=scope).get("authorization", "").encode()
        if self._authorization is not None and not hmac.compare_digest(authorization, self._authorization):
            got, headers = "another key" if authorization else "no key", {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, "authorization", got, "Bearer and the server's key", headers)
        if self._in_flight >= self._limits.requests_at_once:
            got = f"{self._in_flight} requests in flight"
            raise RequestError(503, "request", got, "fewer; try again in a second", {"Retry-After": "1"})


class Rate:
    """Limit each client to so many requests per minute, by the generic cell rate algorithm: one number per client."""

    def __init__(self, per_minute: int) -> None:
        self._interval = _MINUTE / per_minute
        self._due: dict[str, float] = {}  # when a client will have its full allowance again

    def wait_s(self, client: str, now: float) -> float:
        """Return the seconds until the client may send a request; 0 means now, and counts it."""
        due = max(self._due.get(client, now), now) + self._interval
        if due - now > _MINUTE + 1e-9:
            return due - now - _MINUTE
        if len(self._due) >= _MAX_CLIENTS:
            self._due = {name: until for name, until in self._due.items() if until > now}
        self._due[client] = due
        return 0.0


def _limit_body(receive: Receive, limits: LimitsSection) -> Receive:
    """Limit length and time of a body, so that slow senders cannot keep others out."""
    length, complete, ends = 0, False, time.monotonic() + limits.body_s

    async def limited() -> Message:
        nonlocal length, complete
        try:
            # Behind the body comes only the disconnect, at any time.
            with anyio.fail_after(None if complete else ends - time.monotonic()):
                message = await receive()
        except TimeoutError:
            got, expected = f"{length} bytes of it", f"all of it within {limits.body_s:g} s"
            raise RequestError(408, "body", got, expected, {"Connection": "close"}) from None
        length, complete = length + len(message.get("body", b"")), not message.get("more_body", False)
        if length > limits.body_bytes:
            raise RequestError(413, "body", "a longer one", f"at most {limits.body_bytes} bytes")
        return message

    return limited

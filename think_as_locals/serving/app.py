"""The routes of a judge, /judge (items -> verdicts), /score (OpenRLHF) and /health, and the checks before all routes.

/score takes OpenRLHF's requests to a remote reward model (`SingleTurnAgentExecutor._fetch_rewards_via_http`): `query`
is prompt and response as one text with the policy's special tokens, `prompts` the prompt alone, `labels` a column of
the data set. Each request has one response: they wait for one another (`score.group_size`), or labels have a reference.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from think_as_locals.config.model_schema import LimitsSection, ScoreSection, ServeConfig
from think_as_locals.engines.engine import MicroBatches
from think_as_locals.judging.formats import RATINGS
from think_as_locals.reward_models.group import GroupReward, PolicyPrompt, PolicyRow, clean
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.serving.messages import (
    ErrorAnswer,
    ExtraLogs,
    JudgeAnswer,
    JudgeRequest,
    Label,
    OpenAIErrorAnswer,
    RequestError,
    ScoreAnswer,
    ScoreRequest,
    Verdict,
    answer_error,
    check_length,
)
from think_as_locals.serving.openai import add_routes
from think_as_locals.types import DataError, shown

_ERRORS = {
    400: "The body is not JSON.",
    401: "The key is missing or wrong.",
    404: "There is no such route or model.",
    408: "The body did not arrive in time.",
    413: "The request is too long.",
    421: "Without a key, the Host must be this machine.",
    422: "The request cannot be judged.",
    429: "The client sends too many requests; Retry-After says when to try again.",
    500: "The engine failed.",
    503: "Too many requests are in flight; Retry-After says when to try again.",
}


def _responses(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": answer, "description": description} for status, description in _ERRORS.items()}


_logger = logging.getLogger(__name__)
_OPEN_ROUTE = "/health"
_PORT = re.compile(r":\d*$")
_MINUTE = 60.0
_MAX_CLIENTS = 4096  # remembered before idle ones are forgotten

_Reward = tuple[float, float, float, float]
"""A reward from 0 to 1, and what is logged with it, as `ExtraLogs` has it."""


def create_app(judge: Judge, config: ServeConfig, key: str | None) -> FastAPI:
    """Return the app of a listwise judge in one order; nothing else may use the judge's engine while it runs."""
    batches = MicroBatches(judge.engine, config.window_s, config.judge.chunk_size)
    judge = replace(judge, engine=batches)
    section, limits = config.score, config.limits
    protocol = JudgingProtocol(kind=section.protocol, orders=section.orders, convention=judge.protocol.convention)
    settings = replace(judge.settings, prompt=section.prompt or judge.settings.prompt)
    scoring = GroupReward(replace(judge, protocol=protocol, settings=settings))
    scorer = GroupScorer(scoring, section, batches.special_tokens)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A thread for each admitted request: else micro-batches would be no larger than the thread pool.
        anyio.to_thread.current_default_thread_limiter().total_tokens = limits.requests_at_once
        yield
        await run_in_threadpool(batches.close)

    errors = (HTTPException, RequestValidationError, DataError, Exception)
    app = FastAPIOffline(  # /docs with this server's own scripts, not those of another
        title="Think-as-Locals judge",
        lifespan=lifespan,
        redoc_url=None,
        exception_handlers=dict.fromkeys(errors, answer_error),
    )
    app.add_middleware(AccessMiddleware, limits=limits, key=key, host=config.host)

    @app.get(_OPEN_ROUTE)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/judge", responses=_responses(ErrorAnswer))
    async def judge_items(request: JudgeRequest) -> JudgeAnswer:
        if len(request.items) > limits.items:
            raise RequestError(413, "items", f"{len(request.items)} items", f"at most {limits.items}")
        for i, given in enumerate(request.items):
            texts = {"prompt": given.prompt} | {f"responses[{j}]": text for j, text in enumerate(given.responses)}
            for name, text in texts.items():
                check_length(f"items[{i}].{name}", text, limits)
        items = [given.item(f"items[{index}]") for index, given in enumerate(request.items)]
        scored = await run_in_threadpool(judge.predict, items)
        return JudgeAnswer(judgements=[Verdict.model_validate(each.record(), strict=False) for each in scored])

    @app.post("/score", responses=_responses(ErrorAnswer))
    async def score_responses(request: ScoreRequest) -> ScoreAnswer:
        _check_rows(request, limits)
        return await scorer.score(request)

    add_routes(app, judge, config.judge.path, limits, _responses(OpenAIErrorAnswer))
    return app


def _check_rows(request: ScoreRequest, limits: LimitsSection) -> None:
    columns = {"query": request.query, "prompts": request.prompts, "labels": request.labels}
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise RequestError(422, "body", got, "as many of each")
    if len(request.query) > limits.responses:
        raise RequestError(413, "query", f"{len(request.query)} responses", f"at most {limits.responses}")
    for i, query in enumerate(request.query):
        check_length(f"query[{i}]", query, limits)
    for i, label in enumerate(request.labels or []):
        text = f"{label.question}{label.reference}" if isinstance(label, Label) else label or ""
        check_length(f"labels[{i}]", text, limits)


class GroupScorer:
    """Scores responses within their groups, without `special_tokens` at the end of a query."""

    def __init__(self, reward: GroupReward, section: ScoreSection, special_tokens: Sequence[str]) -> None:
        self._reward = reward
        self._section = section
        self._special_tokens = tuple(filter(None, special_tokens))
        self._waiting: dict[PolicyPrompt, tuple[list[PolicyRow], asyncio.Event, asyncio.Task[list[_Reward]]]] = {}

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score the responses of one request."""
        labels = request.labels or [None] * len(request.prompts)
        rows = list(map(self._row, range(len(labels)), request.query, request.prompts, labels))
        if self._section.group_size == 1:
            self._check_rivals(rows)
            rewards = await self._judge(rows)
        else:
            rewards = await asyncio.gather(*map(self._judge_in_group, rows))
        values, judged, group_sizes, disagreement = map(list, zip(*rewards, strict=True))
        logs = ExtraLogs(judged=judged, group_size=group_sizes, order_disagreement=disagreement)
        return ScoreAnswer(rewards=values, scores=values, extra_logs=logs)

    def _row(self, index: int, query: str, prompt: str, label: str | Label | None) -> PolicyRow:
        if not query.startswith(prompt):
            raise RequestError(422, f"query[{index}]", shown(query), f"a text that begins with prompts[{index}]")
        known = Label.read(label, f"labels[{index}]")
        end = len(query)
        while token := next((t for t in self._special_tokens if query.endswith(t, len(prompt), end)), ""):
            end -= len(token)
        policy_prompt = PolicyPrompt(known.question or prompt, known.culture, known.language)
        return PolicyRow(policy_prompt, clean(query[len(prompt) : end]), clean(known.reference))

    def _check_rivals(self, rows: Sequence[PolicyRow]) -> None:
        """Raise a RequestError if a response cannot be compared with any other: its reward would be a constant."""
        counts = Counter(row.prompt for row in rows)
        alone = [index for index, row in enumerate(rows) if self._is_alone(row, counts)]
        if alone:
            raise RequestError(
                *(422, f"query[{alone[0]}]", "one response to its prompt, and nothing to compare it with"),
                "several responses to a prompt in one request; or start the server with score.group_size=N, the number "
                "that come in requests of their own (OpenRLHF's rollout.n_samples_per_prompt), or with "
                "score.protocol=pointwise; or give a reference in labels",
            )

    def _is_alone(self, row: PolicyRow, counts: Counter[PolicyPrompt]) -> bool:
        return self._section.protocol == "round_robin" and counts[row.prompt] == 1 and not row.reference

    async def _judge_in_group(self, row: PolicyRow) -> _Reward:
        prompt = row.prompt
        if prompt not in self._waiting:
            group, full = list[PolicyRow](), asyncio.Event()
            self._waiting[prompt] = group, full, asyncio.create_task(self._judge_when_full(group, full))
        group, full, rewards = self._waiting[prompt]
        index = len(group)
        group.append(row)
        if len(group) == self._section.group_size:
            del self._waiting[prompt]
            full.set()
        # Shielded: a client that disconnects must not cancel the group.
        return (await asyncio.shield(rewards))[index]

    async def _judge_when_full(self, group: list[PolicyRow], full: asyncio.Event) -> list[_Reward]:
        """Judge a group once it is full or its time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(full.wait(), self._section.group_wait_s)
        if not full.is_set():
            del self._waiting[group[0].prompt]
            _logger.warning(
                "after score.group_wait_s=%g only %d of %d responses to a prompt are there: judged without the others",
                *(self._section.group_wait_s, len(group), self._section.group_size),
            )
        return await self._judge(group)

    async def _judge(self, rows: Sequence[PolicyRow]) -> list[_Reward]:
        found = await run_in_threadpool(self._reward.rewards, rows)
        # A share of comparisons won is in [0, 1] already, unlike a rating.
        low, high = (0.0, 1.0) if self._section.protocol == "round_robin" else (RATINGS[0], RATINGS[-1])
        sizes, rewards = Counter(row.prompt for row in rows), list[_Reward]()
        for row, (value, disagreement) in zip(rows, found, strict=True):
            share = ((self._reward.neutral if value is None else value) - low) / (high - low)
            judged = float(value is not None and not self._is_alone(row, sizes))
            rewards.append((share, judged, float(sizes[row.prompt]), disagreement))
        return rewards


class AccessMiddleware:
    """ASGI middleware that refuses requests beyond the limits or without the key as bearer token; /health is open.

    Without a key, the server is on loopback and the Host must be this machine: otherwise a web page could resolve its
    own name to 127.0.0.1 (DNS rebinding) and read the answers.
    """

    def __init__(self, app: ASGIApp, limits: LimitsSection, key: str | None, host: str) -> None:
        self._app = app
        self._limits = limits
        here = f"[{host}]" if ":" in host else host
        self._hosts = ("localhost", "127.0.0.1", "[::1]", here) if key is None else None
        self._authorization = None if key is None else f"Bearer {key}".encode()
        self._rate = Rate(limits.requests_per_minute)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            host = headers.get("host", "")
            if self._hosts is not None and _PORT.sub("", host.lower()) not in self._hosts:
                raise RequestError(421, "host", shown(host), f"{', '.join(dict.fromkeys(self._hosts))}, or a key")
            if scope["path"] == _OPEN_ROUTE:
                await self._app(scope, receive, send)
                return
            self._check(scope, headers)
        except RequestError as error:
            await error.response(scope["path"])(scope, receive, send)
            return
        self._in_flight += 1
        try:
            await self._app(scope, _limit_body(receive, self._limits), send)
        finally:
            self._in_flight -= 1

    def _check(self, scope: Scope, headers: Headers) -> None:
        client = scope["client"][0] if scope.get("client") else ""
        # Before the key is checked, so that guesses are limited too.
        if wait := self._rate.wait_s(client, time.monotonic()):
            expected = f"at most {self._limits.requests_per_minute} requests in a minute; try again in {wait:.1f} s"
            retry = {"Retry-After": str(math.ceil(wait))}
            raise RequestError(429, "request", "more requests than one client may send", expected, retry)
        authorization = headers.get("authorization", "").encode()
        if self._authorization is not None and not hmac.compare_digest(authorization, self._authorization):
            got, challenge = "another key" if authorization else "no key", {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, "authorization", got, "Bearer and the server's key", challenge)
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._limits.body_bytes:
            got, expected = f"{declared} bytes", f"at most {self._limits.body_bytes} bytes"
            raise RequestError(413, "body", got, expected, {"Connection": "close"})
        if self._in_flight >= self._limits.requests_at_once:
            got = f"{self._in_flight} requests in flight"
            raise RequestError(503, "request", got, "fewer; try again in a second", {"Retry-After": "1"})


class Rate:
    """Limits the requests of each client per minute by the generic cell rate algorithm, with one number per client."""

    def __init__(self, per_minute: int) -> None:
        self._interval = _MINUTE / per_minute
        self._due: dict[str, float] = {}  # when a client will have its full allowance again

    def wait_s(self, client: str, now: float) -> float:
        """Return the seconds until the client may send a request; if it may now, 0, and the request is counted."""
        due = max(self._due.get(client, now), now) + self._interval
        if due - now > _MINUTE + 1e-9:
            return due - now - _MINUTE
        if len(self._due) >= _MAX_CLIENTS:
            self._due = {name: until for name, until in self._due.items() if until > now}
        self._due[client] = due
        return 0.0


def _limit_body(receive: Receive, limits: LimitsSection) -> Receive:
    """Limit the length and time of a body, so that slow clients do not block others."""
    length, complete, ends = 0, False, time.monotonic() + limits.body_s

    async def limited() -> Message:
        nonlocal length, complete
        try:
            # After the body only a disconnect follows, at any time.
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

"""`tal serve`: a judge behind /judge (items -> verdicts), /score (OpenRLHF) and, in `openai.py`, /v1.

/score takes OpenRLHF's requests to a remote reward model (`SingleTurnAgentExecutor._fetch_rewards_via_http`): `query`
is prompt and response as one text with the policy's special tokens, `prompts` the prompt alone, `labels` a column of
the data set. Each request has one response: they wait for one another (`score.group_size`), or labels have a reference.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import math
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock

import anyio.to_thread
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from think_as_locals.config.checks import validate_as
from think_as_locals.config.compose import ASSETS, compose_recipe, quoted
from think_as_locals.config.model_schema import ScoreSection, ServeConfig
from think_as_locals.engines.engine import Engine, Messages, Sampled, Sampling, sample_all
from think_as_locals.judging.formats import RATINGS
from think_as_locals.reward_models.group import GroupReward, PolicyPrompt, PolicyRow, clean
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.load import load_judge
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.serving.messages import (
    ExtraLogs,
    JudgeAnswer,
    JudgeRequest,
    Label,
    ScoreAnswer,
    ScoreRequest,
    Verdict,
    answer_invalid,
    invalid,
)
from think_as_locals.serving.openai import add_routes
from think_as_locals.types import ConfigError, DataError, Rollout, shown

_logger = logging.getLogger(__name__)

KEY_VARIABLE = "TAL_API_KEY"

_Reward = tuple[float, float, float, float]
"""A reward from 0 to 1, and what is logged with it, as `ExtraLogs` has it."""


def load_server(model: str, overrides: Sequence[str] = ()) -> ServeConfig:
    """Compose conf/serve.yaml with a judge and overrides, and validate it."""
    values = compose_recipe(ASSETS / "conf" / "serve.yaml", [f"judge.path={quoted(model)}", *overrides])
    return validate_as(ServeConfig, values)


def serve(config: ServeConfig) -> None:
    """Load a judge and answer requests until SIGTERM or SIGINT; requests in flight then have `grace_s` to finish."""
    key = required_key(config.host)
    # Uvicorn raises the signal again at its end; this handler ends the whole process with its engines.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with load_judge(config.judge, config.seed) as judge:
        uvicorn.run(
            create_app(judge, config, key),
            host=config.host,
            port=config.port,
            access_log=False,
            server_header=False,
            http="h11",  # which limits the size of headers
            ws="none",
            limit_concurrency=config.limit_concurrency,
            timeout_keep_alive=config.timeout_keep_alive,
            timeout_graceful_shutdown=math.ceil(config.grace_s),
        )


def required_key(host: str) -> str | None:
    """Return the key that requests must have, from `TAL_API_KEY`; `None` if it is unset and the host is loopback."""
    if key := os.environ.get(KEY_VARIABLE):
        return key
    with suppress(ValueError):  # another name
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return None
    raise ConfigError(
        f"host={host} can be reached from other machines: put a key into {KEY_VARIABLE} "
        f"(export {KEY_VARIABLE}=$(openssl rand -hex 32)), or stay on host=127.0.0.1"
    )


def create_app(judge: Judge, config: ServeConfig, key: str | None) -> FastAPI:
    """Return the app of a listwise judge in one order; nothing else may use the judge's engine while it runs."""
    judge = replace(judge, engine=Batches(judge.engine))
    section = config.score
    protocol = JudgingProtocol(kind=section.protocol, orders=section.orders, convention=judge.protocol.convention)
    settings = replace(judge.settings, prompt=section.prompt or judge.settings.prompt)
    reward = GroupReward(replace(judge, protocol=protocol, settings=settings))
    scorer = GroupScorer(reward, section, judge.engine.special_tokens)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A thread for each admitted request: else batches would be no larger than the thread pool.
        anyio.to_thread.current_default_thread_limiter().total_tokens = config.limit_concurrency
        yield

    app = FastAPI(title="Think-as-Locals judge", lifespan=lifespan, redoc_url=None)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(DataError, answer_invalid)

    @app.middleware("http")
    async def require_key(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get("authorization", "").encode()
        if key is None or request.url.path == "/health" or hmac.compare_digest(given, f"Bearer {key}".encode()):
            return await call_next(request)
        message = "expected Authorization: Bearer, and the server's key"
        return JSONResponse({"message": message}, 401, {"WWW-Authenticate": "Bearer"})

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/judge")
    async def judge_items(request: JudgeRequest) -> JudgeAnswer:
        items = [given.item(f"items[{index}]") for index, given in enumerate(request.items)]
        scored = await run_in_threadpool(judge.predict, items)
        return JudgeAnswer(judgements=[Verdict.model_validate(each.record(), strict=False) for each in scored])

    @app.post("/score")
    async def score_responses(request: ScoreRequest) -> ScoreAnswer:
        return await scorer.score(request)

    add_routes(app, judge, config.judge.path)
    return app


class GroupScorer:
    """Scores responses within their groups, without `special_tokens` at the end of a query."""

    def __init__(self, reward: GroupReward, section: ScoreSection, special_tokens: Sequence[str]) -> None:
        self._reward = reward
        self._section = section
        self._special_tokens = tuple(filter(None, special_tokens))
        self._waiting: dict[PolicyPrompt, tuple[list[PolicyRow], asyncio.Event, asyncio.Task[list[_Reward]]]] = {}

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score the responses of one request."""
        columns = {"query": request.query, "prompts": request.prompts, "labels": request.labels}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise invalid(f"got {got}, expected as many of each")
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

    def _row(self, index: int, query: str, prompt: str, label: Label | None) -> PolicyRow:
        if not query.startswith(prompt):
            raise invalid(f"got {shown(query)}, expected a text that begins with prompts[{index}]", "query", index)
        known = label or Label()
        end = len(query)
        while token := next((t for t in self._special_tokens if query.endswith(t, len(prompt), end)), ""):
            end -= len(token)
        policy_prompt = PolicyPrompt(known.question or prompt, known.culture, known.language)
        return PolicyRow(policy_prompt, clean(query[len(prompt) : end]), clean(known.reference))

    def _check_rivals(self, rows: Sequence[PolicyRow]) -> None:
        """Refuse a request if a response cannot be compared with any other: its reward would be a constant."""
        counts = Counter(row.prompt for row in rows)
        alone = [index for index, row in enumerate(rows) if self._is_alone(row, counts)]
        if alone:
            raise invalid(
                "one response to its prompt, and nothing to compare it with: send several in one request; or start the "
                "server with score.group_size=N, the number that come in requests of their own (OpenRLHF's "
                "rollout.n_samples_per_prompt), or with score.protocol=pointwise; or give a reference in labels",
                *("query", alone[0]),
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


@dataclass(frozen=True, slots=True)
class _Call:
    conversations: Sequence[Messages]
    sampling: Sampling
    rollouts: Future[list[Rollout]] = field(default_factory=Future)


class Batches:
    """An engine for any number of threads: the calls that come while it is busy are its next batch.

    If a batch fails, each of its calls is tried alone, so that a prompt that is too long fails only its own call.
    """

    def __init__(self, engine: Engine) -> None:
        self.special_tokens = engine.special_tokens
        self.check_texts = engine.check_texts
        self.sort_key = engine.sort_key
        self.close = engine.close
        self._engine = engine
        self._waiting: list[_Call] = []
        self._list_lock, self._engine_lock = Lock(), Lock()

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        """Sample as `Engine.sample` does, and yield all rollouts together."""
        call = _Call(conversations, sampling)
        with self._list_lock:
            self._waiting.append(call)
        with self._engine_lock:
            if not call.rollouts.done():  # otherwise it was in the batch of another thread
                with self._list_lock:
                    batch = [each for each in self._waiting if each.sampling == sampling]
                    self._waiting = [each for each in self._waiting if each.sampling != sampling]
                self._answer(batch)
        yield from enumerate(call.rollouts.result())

    def _answer(self, batch: Sequence[_Call]) -> None:
        conversations = [messages for call in batch for messages in call.conversations]
        try:
            rollouts = iter(sample_all(self._engine, conversations, batch[0].sampling))
        except Exception as error:  # any exception: its own thread raises it
            if len(batch) == 1:
                batch[0].rollouts.set_exception(error)
                return
            for call in batch:
                self._answer([call])
        else:
            for call in batch:
                call.rollouts.set_result([next(rollouts) for _ in call.conversations])

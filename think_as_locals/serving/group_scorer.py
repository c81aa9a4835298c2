"""POST /score: responses of a policy -> rewards, as OpenRLHF expects them from a remote reward model.

Contract (OpenRLHF, `SingleTurnAgentExecutor._fetch_rewards_via_http` and the readers of its answers): `query` is prompt
and response as one text with the policy's special tokens, `prompts` the prompt alone, `labels` a column of the dataset.
Its executor sends one response per request, all of a prompt at about the same time. A judge compares, so responses to
one prompt wait for one another (`score.group_size`), or labels carry a reference to compare with.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from think_as_locals.config.schema import ScoreSection
from think_as_locals.judging.formats import RATINGS
from think_as_locals.reward_models.group import GroupReward, PolicyRow, Question
from think_as_locals.serving.errors import RequestError, short_repr
from think_as_locals.serving.messages import ExtraLogs, Label, ScoreAnswer, ScoreRequest


class _Reward(NamedTuple):
    """A reward from 0 to 1, and what is logged with it (see `ExtraLogs`)."""

    value: float
    judged: bool
    group_size: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Responses that wait for others to the same question."""

    rows: list[PolicyRow] = field(default_factory=list)
    full: asyncio.Event = field(default_factory=asyncio.Event)


class GroupScorer:
    """Score responses within their groups; `special_tokens` at the end of a query are not part of the response."""

    def __init__(self, reward: GroupReward, section: ScoreSection, special_tokens: Sequence[str]) -> None:
        self._reward = reward
        self._section = section
        self._special_tokens = tuple(filter(None, special_tokens))
        self._waiting: dict[Question, tuple[_Group, asyncio.Task[list[_Reward]]]] = {}

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score the responses of one request."""
        rows = self._rows(request)
        if self._section.group_size == 1:
            rewards = await self._judge(rows)
        else:
            rewards = list(await asyncio.gather(*map(self._judge_in_group, rows)))
        values = [reward.value for reward in rewards]
        logs = ExtraLogs(
            judged=[float(reward.judged) for reward in rewards],
            group_size=[float(reward.group_size) for reward in rewards],
        )
        return ScoreAnswer(rewards=values, scores=values, extra_logs=logs)

    def _rows(self, request: ScoreRequest) -> list[PolicyRow]:
        labels = request.labels or [None] * len(request.prompts)
        rows = []
        for i, (query, prompt, label) in enumerate(zip(request.query, request.prompts, labels, strict=True)):
            if not query.startswith(prompt):
                raise RequestError(422, f"query[{i}]", short_repr(query), f"a text that begins with prompts[{i}]")
            known = Label.read(label, f"labels[{i}]")
            end = len(query)
            while token := next((t for t in self._special_tokens if query.endswith(t, len(prompt), end)), ""):
                end -= len(token)
            question = Question(known.question or prompt, known.culture, known.language)
            rows.append(PolicyRow(question, query[len(prompt) : end], known.reference))
        return rows

    async def _judge_in_group(self, row: PolicyRow) -> _Reward:
        question = row.question
        if question not in self._waiting:
            group = _Group()
            self._waiting[question] = group, asyncio.create_task(self._judge_when_full(question, group))
        group, rewards = self._waiting[question]
        place = len(group.rows)
        group.rows.append(row)
        if len(group.rows) == self._section.group_size:
            del self._waiting[question]
            group.full.set()
        # Shielded: a client that disconnects must not cancel the group.
        return (await asyncio.shield(rewards))[place]

    async def _judge_when_full(self, question: Question, group: _Group) -> list[_Reward]:
        """Wait until a group is full or its time is up, then judge it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(group.full.wait(), self._section.group_wait_s)
        if not group.full.is_set():
            del self._waiting[question]
        return await self._judge(group.rows)

    async def _judge(self, rows: Sequence[PolicyRow]) -> list[_Reward]:
        questions, texts, references = zip(*rows, strict=True)
        prompts, cultures, languages = zip(*questions, strict=True)
        values = await run_in_threadpool(self._reward.score, prompts, texts, cultures, languages, references)
        sizes = Counter(questions)
        return [
            _Reward(self._scaled(value), judged=value is not None, group_size=sizes[question])
            for question, value in zip(questions, values, strict=True)
        ]

    def _scaled(self, value: float | None) -> float:
        """Return a reward from 0 to 1, as a share of comparisons is already."""
        number = self._reward.neutral if value is None else value
        if self._section.protocol == "round_robin":
            return number
        return (number - RATINGS[0]) / (RATINGS[-1] - RATINGS[0])

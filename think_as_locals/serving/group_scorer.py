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

from starlette.concurrency import run_in_threadpool

from think_as_locals.config.schema import ScoreSection
from think_as_locals.judging.formats import RATINGS
from think_as_locals.reward_models.group import GroupReward, PolicyRow, Question
from think_as_locals.serving.messages import ExtraLogs, Label, RequestError, ScoreAnswer, ScoreRequest, short_repr

_Reward = tuple[float, float, float]
"""A reward from 0 to 1, and what is logged with it: `judged` and `group_size`, see `ExtraLogs`."""


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
        labels = request.labels or [None] * len(request.prompts)
        rows = list(map(self._row, range(len(labels)), request.query, request.prompts, labels))
        if self._section.group_size == 1:
            rewards = await self._judge(rows)
        else:
            rewards = await asyncio.gather(*map(self._judge_in_group, rows))
        values, judged, group_sizes = map(list, zip(*rewards, strict=True))
        logs = ExtraLogs(judged=judged, group_size=group_sizes)
        return ScoreAnswer(rewards=values, scores=values, extra_logs=logs)

    def _row(self, place: int, query: str, prompt: str, label: str | Label | None) -> PolicyRow:
        if not query.startswith(prompt):
            raise RequestError(422, f"query[{place}]", short_repr(query), f"a text that begins with prompts[{place}]")
        known = Label.read(label, f"labels[{place}]")
        end = len(query)
        while token := next((t for t in self._special_tokens if query.endswith(t, len(prompt), end)), ""):
            end -= len(token)
        question = Question(known.question or prompt, known.culture, known.language)
        return PolicyRow(question, query[len(prompt) : end], known.reference)

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
        # A share of comparisons won is from 0 to 1 already, a rating is not.
        low, high = (0.0, 1.0) if self._section.protocol == "round_robin" else (RATINGS[0], RATINGS[-1])
        sizes = Counter(questions)
        return [
            (
                ((self._reward.neutral if value is None else value) - low) / (high - low),
                float(value is not None),
                float(sizes[question]),
            )
            for question, value in zip(questions, values, strict=True)
        ]

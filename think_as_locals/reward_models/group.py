"""Rewards for single responses, for training a policy: each response is judged within its group.

A judge that compares has no score for a single response (RM-R1, issue 5), but it can compare the responses to a prompt.
"""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from think_as_locals.data.sources.jsonl import UNSEEN
from think_as_locals.engines.engine import Backend
from think_as_locals.judging.formats import RATINGS
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.protocols import ROUND_ROBIN, JudgingProtocol
from think_as_locals.reward_models.reward_model import TOO_LONG, RewardModel, query_all
from think_as_locals.types import DataError, Item, is_text, join_turns

Turns = Sequence[Mapping[str, Any]]
"""Messages, in which prompts and completions of frameworks come, or else as texts."""

NEUTRAL = 0.5  # the reward of a response without a rival
_BLANK = "\u2060"  # a word joiner, in place of a blank response, which an item cannot hold


class PolicyPrompt(NamedTuple):
    """The prompt that the responses of a group answer."""

    prompt: str
    culture: str | None
    language: str
    turns: tuple[tuple[str, str], ...] = ()  # of a conversation, as `Item.turns`


class PolicyRow(NamedTuple):
    """A response and its reference; each is empty if blank."""

    prompt: PolicyPrompt
    text: str
    reference: str = ""


def policy_rows(
    prompts: Sequence[str | Turns],
    responses: Sequence[str],
    cultures: Sequence[str | None] | None = None,
    languages: Sequence[str | None] | None = None,
    references: Sequence[str | None] | None = None,
) -> list[PolicyRow]:
    """Return checked rows from the columns of a batch; a DataError names the row and the column."""
    unknown = [None] * len(prompts)
    conversations = [prompt if isinstance(prompt, list | tuple) else [] for prompt in prompts]
    texts = [question(prompt) if isinstance(prompt, list | tuple) else prompt for prompt in prompts]
    columns: dict[str, Sequence[Any]] = {
        "prompts": texts,
        "responses": responses,
        "cultures": unknown if cultures is None else cultures,
        "languages": unknown if languages is None else languages,
        "references": unknown if references is None else references,
    }
    if any(len(column) != len(prompts) for column in columns.values()):
        lengths = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
        raise DataError(f"expected as many of each, got {lengths}")
    rows = []
    for row, (prompt, response, culture, language, reference) in enumerate(zip(*columns.values(), strict=True)):
        for name, value in (("prompt", prompt), ("culture", culture), ("language", language)):
            if not is_text(value) and (value is not None or name == "prompt"):
                raise DataError(f"row {row}: {name} must be a non-blank string, got {value!r}")
        for name, value in (("response", response), ("reference", reference)):
            if not isinstance(value, str) and (value is not None or name == "response"):
                raise DataError(f"row {row}: {name} must be a string, got {value!r}")
        turns = tuple((str(turn.get("role")), _text(turn)) for turn in conversations[row])
        policy_prompt = PolicyPrompt(str(prompt), culture, language or "und", turns if len(turns) > 1 else ())
        rows.append(PolicyRow(policy_prompt, clean(str(response)), clean(reference or "")))
    return rows


def clean(text: str) -> str:
    """Return a text without lone surrogates, which an item cannot hold; empty if it is blank."""
    is_blank = all(unicodedata.category(character)[0] in "CZ" for character in text)
    return "" if is_blank else text.encode(errors="replace").decode()


class Reward(NamedTuple):
    """The reward of a response, and the share of its comparisons in which the judge's two orders disagree."""

    value: float | None
    order_disagreement: float


@dataclass(frozen=True, slots=True)
class GroupReward:
    """Rewards for the responses of a policy, from any reward model.

    Rows with the same prompt, culture and language are a group, of any size; the same text twice in a group is one
    response. The reward of a response:

    - from a judge that compares (listwise, pairwise or round robin): the share of its comparisons that it won. n
      responses take n (n - 1) / 2 requests, twice that in both orders; a pair that is split over the orders counts 1/2
      for both. Without a parseable comparison it is `None`, without a rival 1/2. A reference is one more rival.
    - from a judge that rates (pointwise): its rating, `None` for a parse failure.
    - from any other reward model: its score.

    A blank response (whitespace and invisible characters at most) must not pay: it loses every comparison without the
    judge being asked, and its rating is the lowest. Other reward models score it as an empty response.

    Example:
        reward = GroupReward.load("owner/judge", base_url="http://127.0.0.1:8000/v1")
        reward.score(["Breakfast?"] * 2, ["Rice and miso.", "A croissant."], cultures=["JP"] * 2)  # [1.0, 0.0]
    """

    rm: RewardModel

    @classmethod
    def load(
        cls, path: str, backend: Backend = "transformers", protocol: JudgingProtocol = ROUND_ROBIN, **options: Any
    ) -> GroupReward:
        """Load a judge into this process, or connect to a server; all arguments are those of `Judge.load`.

        A pointwise protocol needs `prompt="rewardbench2_ratings"`.
        """
        return cls(Judge.load(path, backend, protocol=protocol, **options))

    def score(
        self,
        prompts: Sequence[str | Turns],
        responses: Sequence[str],
        cultures: Sequence[str | None] | None = None,
        languages: Sequence[str | None] | None = None,
        references: Sequence[str | None] | None = None,
    ) -> list[float | None]:
        """Return one reward for each row of the columns; `None` without one.

        Args:
            prompts: The user's prompts, as texts or as messages.
            responses: The policy's responses.
            cultures: ISO 3166 codes; `None`, for all or one, if unknown.
            languages: BCP-47 tags of the prompts; `None` if unknown.
            references: Rivals in the row's group, if any, for a judge that compares; others ignore them.

        Raises:
            DataError: columns of different lengths, or a value that is not a text; the message names the row.
        """
        rows = policy_rows(prompts, responses, cultures, languages, references)
        return [reward.value for reward in self.rewards(rows)]

    def rewards(self, rows: Sequence[PolicyRow]) -> list[Reward]:
        """Return the reward of each row; see `policy_rows`."""
        groups: dict[PolicyPrompt, dict[str, None]] = defaultdict(dict)
        for prompt, text, reference in rows:
            groups[prompt][text] = None
            if reference and self._judge:
                groups[prompt][reference] = None
        items = [(prompt, item) for prompt, texts in groups.items() for item in self._items(prompt, texts)]
        # A model that gives scores is asked about the first of both texts alone.
        ask = self.rm.requests if self._judge else lambda item: self.rm.score_requests(item)[:1]
        item_requests = [ask(item) for _, item in items]
        found: dict[tuple[PolicyPrompt, str], list[float]] = defaultdict(list)
        for (prompt, item), requests, answers in zip(
            items, item_requests, query_all(self.rm, item_requests), strict=True
        ):
            if self._judge:
                pairs = [(request, self._judge.read(request, a)) for request, a in zip(requests, answers, strict=True)]
                won = [request.order[read.verdict] for request, read in pairs if read.verdict is not None]
                values: Sequence[float] = [won.count(i) / len(won) if won else math.nan for i in (0, 1)]
            else:
                values = self.rm.scores(item, [*answers, {TOO_LONG: ""}])[:1]
            for text, value in zip(item.responses, values, strict=False):
                if not math.isnan(value):
                    found[prompt, "" if text == _BLANK else text].append(value)
        return [self._reward(text, groups[prompt], found[prompt, text]) for prompt, text, _ in rows]

    @property
    def neutral(self) -> float:
        """The middle of the range, in place of `None` for frameworks that accept only numbers."""
        if self._judge:
            return NEUTRAL
        return sum(RATINGS) / len(RATINGS) if isinstance(self.rm, Judge) else 0.0

    @property
    def _judge(self) -> Judge | None:
        """The reward model, if it is a judge that compares responses."""
        rm = self.rm
        return rm if isinstance(rm, Judge) and rm.protocol.kind != "pointwise" else None

    @property
    def _lowest(self) -> float | None:
        """The reward of a blank response, about which nothing is asked; `None` if the reward model scores those too."""
        if self._judge:
            return 0.0
        return float(RATINGS[0]) if isinstance(self.rm, Judge) else None

    def _items(self, prompt: PolicyPrompt, texts: Iterable[str]) -> list[Item]:
        """Return all pairs of texts for a judge that compares, else each text and what fills up an item."""
        texts = [text or _BLANK for text in texts if text or self._lowest is None]
        pairs = combinations(texts, 2) if self._judge else ((text, text + _BLANK) for text in texts)
        return [Item(id="policy", responses=pair, **UNSEEN, **prompt._asdict()) for pair in pairs]

    def _reward(self, text: str, group: Collection[str], values: list[float]) -> Reward:
        if not text and self._lowest is not None:
            return Reward(self._lowest, 0.0)
        if self._judge and len(group) == 1:
            return Reward(NEUTRAL, 0.0)
        won = [1.0] if self._judge and "" in group else []  # against a blank response, without a request
        known = values + won
        if not known:
            return Reward(None, 0.0)
        split = sum(0 < value < 1 for value in known) if self._judge else 0
        return Reward(math.fsum(known) / len(known), split / len(known))


def question(prompt: str | Turns) -> str:
    """Return a prompt as one text: several messages each with its role before it, as in the data sources."""
    if isinstance(prompt, str):
        return prompt
    return join_turns([(str(message.get("role")), _text(message)) for message in prompt])


def response(completion: str | Turns) -> str:
    """Return a completion as one text: the last of its messages (several if tools were called); blank without any."""
    if isinstance(completion, str):
        return completion
    return _text(completion[-1]) if completion else ""


def _text(message: Mapping[str, Any]) -> str:
    """Return the content of a message, or the texts of its parts."""
    content = message.get("content") or ""
    parts = [part.get("text") for part in content] if isinstance(content, list) else [content]
    if not all(isinstance(part, str) for part in parts):
        raise DataError(f"expected a message with a text as its content, got {message!r}: judges read only texts")
    return "".join(parts)

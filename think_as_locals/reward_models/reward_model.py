"""The protocol of every kind of reward model.

Item -> Request, Request, ... -> answers (plain JSON, kept in a journal) -> ScoredItem, ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from think_as_locals.judging.formats import VOIDING
from think_as_locals.types import LABELS, Item, Judgement, TooLong, TooLongError, first_of

Answer = dict[str, Any]  # to one request: plain JSON that only its own kind of reward model parses
Answered = Iterator[tuple[int, Answer]]  # the index of a request and its answer, in any order

TOO_LONG, REFUSED = "too_long", "refused"
"""The issues of an item that is too long for a reward model, or that its server's content filter refuses: an answer
has one as a key, with the reason as its value, and both count as `eval.too_long` says."""


def is_unanswered(keys: Collection[str]) -> bool:
    """Return whether an answer, or the issues of a judgement, say that the reward model did not take the request."""
    return TOO_LONG in keys or REFUSED in keys


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a reward model: about some of an item's responses, presented in the given order of indices."""

    item: Item
    order: tuple[int, ...]

    @property
    def responses(self) -> tuple[str, ...]:
        return tuple(self.item.responses[i] for i in self.order)


class Queryable(Protocol):
    """Answers requests, in chunks."""

    @property
    def chunk_size(self) -> int | None:
        """How many requests go into one call of `query`, also on a resumed run; `None` if each is independent."""

    def sort_key(self, request: Request) -> str | tuple[int, str]:
        """Return a key for sorting: neighbours share a prefix or have similar lengths, and are cheaper together."""

    def query(self, requests: Sequence[Request]) -> Answered:
        """Answer a chunk of requests, and yield each answer as soon as it is there, in any order."""


class RewardModel(Queryable, Protocol):
    """Items -> predictions, by way of requests and answers."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides its answers, as JSON (weights, prompt, protocol, dtype): by this, answers are reused."""

    def requests(self, item: Item) -> list[Request]:
        """Return the requests that judge an item."""

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[ScoredItem]:
        """Combine the answers to `requests(item)` into one prediction, or one for each order of the responses."""

    def score_requests(self, item: Item) -> list[Request]:
        """Return the requests that score responses in the item's own order; none if it gives no scores."""

    def scores(self, item: Item, answers: Sequence[Answer]) -> tuple[float, ...]:
        """Return the score of each response from the answers to `score_requests(item)`; NaN without one."""

    def close(self) -> None:
        """End the processes that it runs, such as vLLM's engine core; it cannot be used afterwards."""


def query_all(rm: RewardModel, requests: Sequence[Sequence[Request]], allow_long: bool = False) -> list[list[Answer]]:
    """Return the answers to the requests about each item, from one call of `query` or `query_fitting`."""
    answers: dict[int, Answer] = {}
    if together := [request for of_item in requests for request in of_item]:
        answers = dict(query_fitting(rm, together) if allow_long else rm.query(together))
    in_order = iter([answers[index] for index in range(len(together))])
    return [list(islice(in_order, len(of_item))) for of_item in requests]


def query_fitting(rm: Queryable, requests: Sequence[Request]) -> Answered:
    """Answer requests as `Queryable.query` does; one that is not taken gets the answer `{issue: why}`."""
    is_open = bytearray(b"\1") * len(requests)
    try:
        for index, answer in rm.query(requests):
            is_open[index] = False
            yield index, answer
    except TooLongError as error:
        reason = str(error)
        for index in error.indices:
            is_open[index] = False
            yield index, {REFUSED if index in error.refused else TOO_LONG: reason}
        if rest := [index for index in range(len(requests)) if is_open[index]]:
            for place, answer in rm.query([requests[index] for index in rest]):
                yield rest[place], answer


def check_lengths(reasons: Mapping[str, str], of: int, too_long: TooLong) -> None:
    """Raise a TooLongError if items are not taken (`reasons`, by id) and that is an error, or if all `of` items are."""
    if reasons and (too_long == "error" or len(reasons) == of):
        got = f"{len(reasons)} of {of} items are too long, or refused: {first_of(map(repr, reasons), 5)}"
        remedy = "eval.too_long=exclude leaves them out, eval.too_long=wrong counts them as wrong"
        raise TooLongError(f"{got}. {next(iter(reasons.values()))}. {remedy}", range(len(reasons)))


def too_long_reason(answers: Sequence[Answer]) -> tuple[str, str] | None:
    """Return the issue of an item and why, if one of the answers to its requests says that it was not taken."""
    return next((next(iter(answer.items())) for answer in reversed(answers) if is_unanswered(answer)), None)


def combine(rm: RewardModel, answered: Iterable[tuple[Item, Sequence[Answer]]]) -> Iterator[ScoredItem]:
    """Yield the predictions on items, given the answers about each; one that is too long has no verdict and says so."""
    for item, answers in answered:
        if found := too_long_reason(answers):
            issue, why = found
            judgement = Judgement(verdict=None, rubric=None, analysis=None, issues=(issue,), completion=why)
            yield ScoredItem(item=item, presented=item, judgement=judgement)
        else:
            yield from rm.predictions(item, answers)


def apply_too_long(scored: Iterable[ScoredItem], too_long: TooLong) -> Iterator[ScoredItem]:
    """Yield the predictions that count: items that are too long are left out, count as wrong or raise an error."""
    reasons, ids = dict[str, str](), set[str]()
    for each in scored:
        ids.add(each.item.id)
        if each.too_long:
            reasons[each.item.id] = each.judgement.completion
        if too_long == "wrong" or not each.too_long:
            yield each
    check_lengths(reasons, len(ids), too_long)


def identify_weights(path: str, commit: str | None) -> dict[str, Any]:
    """Return what identifies weights: path and commit on the Hub, or a digest of a directory, which may be moved."""
    folder = Path(path)
    if not folder.is_dir():
        return {"path": path, "commit": commit}
    beside = ("LICENSE", "README.md")  # which a push may ask for later
    states = {file.name: file.stat() for file in sorted(folder.iterdir()) if file.is_file() and file.name not in beside}
    listed = [(name, state.st_size, state.st_mtime_ns) for name, state in states.items()]
    return {"files": hashlib.sha256(repr(listed).encode()).hexdigest()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredItem:
    """A reward model's prediction on one item, or on one order of its responses."""

    item: Item  # with its responses in the order of its source
    presented: Item  # with its responses in the order the reward model saw
    judgement: Judgement  # for a model that scores, with its unique favourite as the verdict
    scores: tuple[float, ...] | None = None  # of the responses as presented
    parse_failure_credit: float = 0.0  # without a parsed verdict: 1/N in RewardBench 2's convention

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the item's responses in the order in which the reward model saw them."""
        return tuple(map(self.item.responses.index, self.presented.responses))

    @property
    def answer(self) -> Judgement:
        """The judgement with its verdict in the item's own order."""
        verdict = None if self.judgement.verdict is None else self.order[self.judgement.verdict]
        return replace(self.judgement, verdict=verdict, order=self.order)

    @property
    def parse_failure(self) -> bool:
        """Whether the verdict could not be parsed; a tie, or an item that is too long, is not a parse failure."""
        return self.judgement.verdict is None and not VOIDING.isdisjoint(self.judgement.issues)

    @property
    def too_long(self) -> bool:
        """Whether the item was too long for the reward model, or refused, and so was not judged."""
        return is_unanswered(self.judgement.issues)

    @property
    def credit(self) -> float:
        """In [0, 1]: 1 if the best response was chosen, 1/k if k responses tie with it, else 0."""
        if self.parse_failure:
            return self.parse_failure_credit
        if self.scores is not None:
            return tie_credit(self.scores, self.presented.best)
        return float(self.judgement.verdict == self.presented.best)

    @property
    def correct(self) -> bool:
        """Whether the verdict is the best response: not for a parse failure or a tie."""
        return self.judgement.verdict == self.presented.best

    def judgement_row(self) -> dict[str, Any]:
        """Return its part of a row of a table of judgements; `verdict` and `scores` are in the item's own order."""
        order, scores, verdict = self.order, self.scores, self.judgement.verdict
        return {
            "verdict": None if verdict is None else order[verdict],
            "label": None if verdict is None else LABELS[verdict],
            "order": order,
            "correct": self.correct,
            "credit": self.credit,
            "scores": None if scores is None else [scores[order.index(i)] for i in range(len(scores))],
            "issues": self.judgement.issues,
            "completion": self.judgement.completion,
        }

    def record(self) -> dict[str, Any]:
        """Return the judgement as plain JSON, as `/judge` and `tal judge --json` give it."""
        answer = self.answer
        return {
            "id": self.item.id,
            "verdict": answer.verdict,
            "label": answer.label,
            "order": list(self.order),
            "rubric": None if answer.rubric is None else [asdict(each) for each in answer.rubric.criteria],
            "analysis": answer.analysis,
            "issues": list(answer.issues),
            "completion": answer.completion,
        }


def tie_credit(scores: Sequence[float], best: int) -> float:
    """Return 1/k if the best response is among the k with the highest score, else 0 (arXiv 2506.01937)."""
    top = max(scores)
    return 1 / list(scores).count(top) if scores[best] == top else 0.0


def favourite(scores: Sequence[float]) -> int | None:
    """Return the index of the highest score; `None` if several share it."""
    top = max(scores)
    return list(scores).index(top) if list(scores).count(top) == 1 else None

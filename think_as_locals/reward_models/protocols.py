"""Protocols of judging: how an item is presented to a judge (listwise, pairwise, round robin, pointwise) and scored.

A parse failure is worth nothing by the convention `strict`, and 1/N, as for a guess, by `rewardbench2`, where a rating
that cannot be parsed is -1 (arXiv 2506.01937, its code). A tie of k responses, the best among them, is worth 1/k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from think_as_locals.judging import prompt_format, reorder_responses
from think_as_locals.judging.formats import VOIDING, Format
from think_as_locals.judging.prompt import shuffled_order
from think_as_locals.reward_models.reward_model import Request, ScoredItem, favourite, tie_credit
from think_as_locals.types import LABELS, MAX_ORDERS, ConfigError, Convention, Item, Judgement, ProtocolKind

_PARSE_FAILURE_RATING = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingProtocol:
    """The requests to a judge about an item, and how its judgements are combined into predictions."""

    # `listwise` (all at once), `pairwise` (the best has to beat each other one), `round_robin` (every two; the response
    # with most wins is chosen) or `pointwise` (each alone, to be rated).
    kind: ProtocolKind
    orders: int  # in how many responses are presented: rotations of a list (at most all N), 1 or 2 of a pair
    convention: Convention  # how parse failures count

    def __post_init__(self) -> None:
        most = MAX_ORDERS[self.kind]
        if not 1 <= self.orders <= most:
            raise ConfigError(f"got {self.orders} orders of a {self.kind} protocol, expected 1 to {most}")

    def format(self, prompt: str) -> Format:
        """Return the format of the answer to a prompt; a ConfigError if the protocol cannot use it."""
        found = prompt_format(prompt)
        if found.asks_for_rating != (self.kind == "pointwise"):
            raise ConfigError(
                f"got prompt {prompt!r} in a {self.kind} protocol; pointwise needs a prompt that asks "
                "for a rating (rewardbench2_ratings), every other protocol one that asks for a verdict"
            )
        return found

    def requests(self, item: Item, seed: int) -> list[Request]:
        """Return the requests about an item, in an order that does not depend on which response is the best."""

        def shuffled(*indices: int) -> tuple[int, ...]:
            return tuple(indices[i] for i in shuffled_order([item.responses[i] for i in indices], seed))

        order = shuffled(*range(len(item.responses)))
        if self.kind == "listwise":
            return [Request(item, order[i:] + order[:i]) for i in range(min(self.orders, len(order)))]
        if self.kind == "pointwise":
            return [Request(item, (i,)) for i in order]
        with_best = [(item.best, other) for other in order if other != item.best]
        pairs = [shuffled(*pair) for pair in (with_best if self.kind == "pairwise" else combinations(order, 2))]
        return [Request(item, pair[::turn]) for pair in pairs for turn in (1, -1)[: self.orders]]

    def predictions(
        self, requests: Sequence[Request], judgements: Sequence[Judgement], seed: int, guesses_failures: bool = True
    ) -> list[ScoredItem]:
        """Combine the judgements of all `requests(item, seed)` into predictions: listwise one for each order, else one.

        A single prediction has `scores`: ratings, or shares of comparisons won (pairwise: of the others against the
        best response, which has 1/2). It has a verdict if everything could be parsed; else the credit of its scores, or
        none (strict, not pairwise). A comparison that cannot be parsed is won by half (strict: by none; pairwise and
        strict: lost by the best response).
        """
        guesses = self.convention == "rewardbench2" and guesses_failures
        if self.kind == "listwise":
            return [
                ScoredItem(
                    item=request.item,
                    presented=reorder_responses(request.item, request.order),
                    judgement=judged,
                    parse_failure_credit=1 / len(request.order) if guesses else 0.0,
                )
                for request, judged in zip(requests, judgements, strict=True)
            ]
        item = requests[0].item
        order = shuffled_order(item.responses, seed)
        presented = reorder_responses(item, order)
        slots = [[order.index(i) for i in request.order] for request in requests]
        scores: tuple[float, ...] | None
        if self.kind != "pointwise":
            scores = self._shares(presented, slots, judgements)
        elif self.convention == "strict" and any(judged.rating is None for judged in judgements):
            scores = None
        else:
            scores = tuple(_PARSE_FAILURE_RATING if judged.rating is None else judged.rating for judged in judgements)
        issues = tuple(dict.fromkeys(issue for judged in judgements for issue in judged.issues))
        credit = 0.0
        if scores is not None and (self.convention == "rewardbench2" or self.kind == "pairwise"):
            credit = tie_credit(scores, presented.best)  # parse failures are in the scores already
        judgement = Judgement(
            verdict=None if scores is None or VOIDING.intersection(issues) else favourite(scores),
            rubric=None,
            analysis=None,
            issues=issues,
            completion="\n\n".join(_summary(slot, judged) for slot, judged in zip(slots, judgements, strict=True)),
        )
        return [
            ScoredItem(item=item, presented=presented, judgement=judgement, scores=scores, parse_failure_credit=credit)
        ]

    def _shares(self, presented: Item, slots: list[list[int]], judgements: Sequence[Judgement]) -> tuple[float, ...]:
        """Return for each response, as presented, the share of its comparisons that it won."""
        wins, num_comparisons = [0.0] * len(presented.responses), [0] * len(presented.responses)
        for pair, judged in zip(slots, judgements, strict=True):
            for index, slot in enumerate(pair):
                num_comparisons[slot] += 1
                if judged.verdict is not None:
                    wins[slot] += float(judged.verdict == index)
                elif self.convention == "rewardbench2":
                    wins[slot] += 0.5
                else:
                    wins[slot] += float(self.kind == "pairwise" and slot != presented.best)
        if self.kind == "pairwise":
            wins[presented.best], num_comparisons[presented.best] = 0.5, 1
        return tuple(won / of for won, of in zip(wins, num_comparisons, strict=True))


LISTWISE = JudgingProtocol(kind="listwise", orders=1, convention="strict")  # how judges are trained
ROUND_ROBIN = JudgingProtocol(kind="round_robin", orders=2, convention="strict")


def _summary(slots: Sequence[int], judgement: Judgement) -> str:
    """Return one of several completions under a line with its labels and its outcome."""
    labels = [LABELS[slot] for slot in slots]
    if VOIDING.intersection(judgement.issues):
        outcome = f"parse failure: {', '.join(judgement.issues)}"
    elif judgement.verdict is None:
        outcome = f"rated {judgement.rating:g}"
    else:
        outcome = f"chose {labels[judgement.verdict]}"
    return f"[{' or '.join(labels)}: {outcome}]\n{judgement.completion}"

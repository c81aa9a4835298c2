"""How an item is put to a judge, and what its readings come to: listwise, pairwise, round robin or pointwise.

The conventions are those of `judging.readers`. Without a reading, `strict` gives a judge nothing; `rewardbench2` gives
it what a guess would get, 1/N (arXiv 2506.01937, its code: an unreadable verdict among four is worth 0.25, and an
unreadable rating is -1, below all others). A tie of the best response with k is worth 1/k in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from think_as_locals.judging import permute, present
from think_as_locals.models.prediction import Prediction, favourite, tie_credit
from think_as_locals.models.reward_model import Request
from think_as_locals.types import LABELS, ConfigError, Convention, Item, Judgement, ProtocolKind

_MOST_ORDERS: dict[ProtocolKind, int] = {"listwise": len(LABELS), "pairwise": 2, "round_robin": 2, "pointwise": 1}
_UNREAD_RATING = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read of a judge's answer to one request.

    Args:
        judgement: Its verdict among the responses that the request shows; of a rating `issues` alone.
        rating: Of a single response; `None` where it could not be read, or was not asked for.
        margin: Log-odds of the verdict's label against the others on offer, where they are known.
    """

    judgement: Judgement
    rating: float | None = None
    margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingProtocol:
    """What a judge is asked about an item, and how its readings become predictions.

    Args:
        kind: `listwise`: all responses at once. `pairwise`: the best response against each other one, and it has to
            beat them all. `round_robin`: every two, and the response with most wins is chosen. `pointwise`: each alone,
            to be rated.
        orders: In how many orders responses are shown: of a list that many rotations (all N where an item has fewer),
            of pairs 2 for both orders.
        convention: Of what cannot be read.

    Raises:
        ConfigError: `orders` is not among those of the kind.

    Example:
        >>> item = Item(id="1", prompt="?", responses=("x", "y", "z"), best=0, culture="TH", language="en",
        ...             domain="value", group="g", source="mine")
        >>> protocol = JudgingProtocol(kind="listwise", orders=3, convention="strict")
        >>> [request.responses for request in protocol.requests(item, seed=0)]
        [('y', 'x', 'z'), ('x', 'z', 'y'), ('z', 'y', 'x')]
    """

    kind: ProtocolKind
    orders: int
    convention: Convention

    def __post_init__(self) -> None:
        most = _MOST_ORDERS[self.kind]
        if not 1 <= self.orders <= most:
            raise ConfigError(f"got {self.orders} orders of a {self.kind} protocol, expected 1 to {most}")

    def requests(self, item: Item, seed: int) -> list[Request]:
        """What a judge is asked about an item.

        Orders come of `present`: neither where the best response lies, nor how the item is stored, decides them. So the
        same pair is shown alike whichever of the two is called the best.
        """
        order = _order(item, range(len(item.responses)), seed)
        if self.kind == "listwise":
            return [Request(item, order[i:] + order[:i]) for i in range(min(self.orders, len(order)))]
        if self.kind == "pointwise":
            return [Request(item, (i,)) for i in order]
        shown = (_order(item, pair, seed) for pair in self._pairs(item, order))
        return [Request(item, pair[::turn]) for pair in shown for turn in (1, -1)[: self.orders]]

    def predictions(self, item: Item, seed: int, readings: Sequence[Reading]) -> list[Prediction]:
        """What readings of the answers to `requests(item, seed)` come to, in that order.

        Returns:
            Listwise, a prediction for each order; else a single one with `scores`. It has a verdict where everything
            could be read; without one it is worth what its scores come to, or nothing (strict, but for pairwise).

            pairwise: 1/2 for the best response, for each other one the share of its comparisons with it that it won. So
            the best wins where it wins more than half against each, and ties where both orders disagree. A comparison
            that cannot be read is lost (strict) or half lost.

            round_robin: the share of its comparisons that each response won. One that cannot be read is won by neither
            (strict), or by both by half.

            pointwise: the ratings. One that cannot be read leaves none (strict), or is -1.

        Raises:
            ValueError: there are more or fewer readings than requests.
        """
        requests = self.requests(item, seed)
        if len(requests) != len(readings):
            raise ValueError(f"item {item.id!r}: got {len(readings)} readings of {len(requests)} requests")
        if self.kind == "listwise":
            return [self._listwise(request, reading) for request, reading in zip(requests, readings, strict=True)]
        shown = present(item, seed)
        slots = [[shown.responses.index(text) for text in request.responses] for request in requests]
        scores = self._ratings(readings) if self.kind == "pointwise" else self._shares(shown, slots, readings)
        text = "\n\n".join(_told(slot, reading) for slot, reading in zip(slots, readings, strict=True))
        return [self._scored(item, shown, scores, readings, text)]

    def _pairs(self, item: Item, order: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        if self.kind == "round_robin":
            return combinations(order, 2)
        return ((item.best, other) for other in order if other != item.best)

    def _listwise(self, request: Request, reading: Reading) -> Prediction:
        return Prediction(
            item=request.item,
            shown=permute(request.item, request.order),
            judgement=reading.judgement,
            margin=reading.margin,
            unread_credit=1 / len(request.order) if self.convention == "rewardbench2" else 0.0,
        )

    def _scored(
        self, item: Item, shown: Item, scores: tuple[float, ...] | None, readings: Sequence[Reading], text: str
    ) -> Prediction:
        """One prediction of several readings; without scores it is unread."""
        issues = tuple(dict.fromkeys(issue for reading in readings for issue in reading.judgement.issues))
        verdict, credit = None, 0.0
        if scores is not None and not issues:
            verdict = favourite(scores)
        if scores is not None and (self.convention == "rewardbench2" or self.kind == "pairwise"):
            credit = tie_credit(scores, shown.best)  # what could not be read is in the scores already
        judgement = Judgement(verdict=verdict, rubric=None, analysis=None, issues=issues, text=text)
        return Prediction(item=item, shown=shown, judgement=judgement, scores=scores, unread_credit=credit)

    def _ratings(self, readings: Sequence[Reading]) -> tuple[float, ...] | None:
        ratings = [reading.rating for reading in readings]
        if self.convention == "strict" and None in ratings:
            return None
        return tuple(_UNREAD_RATING if rating is None else rating for rating in ratings)

    def _shares(self, shown: Item, slots: list[list[int]], readings: Sequence[Reading]) -> tuple[float, ...]:
        """Of each response as shown, the share of its comparisons that it won."""
        wins, asked = [0.0] * len(shown.responses), [0] * len(shown.responses)
        for pair, reading in zip(slots, readings, strict=True):
            verdict = reading.judgement.verdict
            for place, slot in enumerate(pair):
                asked[slot] += 1
                wins[slot] += self._unread_win(slot == shown.best) if verdict is None else float(verdict == place)
        if self.kind == "pairwise":
            wins[shown.best], asked[shown.best] = 0.5, 1
        return tuple(won / of for won, of in zip(wins, asked, strict=True))

    def _unread_win(self, is_best: bool) -> float:
        """How far a response has won a comparison that cannot be read."""
        if self.convention == "rewardbench2":
            return 0.5
        return float(self.kind == "pairwise" and not is_best)


def _order(item: Item, indices: Sequence[int], seed: int) -> tuple[int, ...]:
    """Some of an item's responses, as `present` shows an item that has just these."""
    among = replace(item, responses=tuple(item.responses[i] for i in indices), best=0, origins=())
    return tuple(item.responses.index(response) for response in present(among, seed).responses)


def _told(slots: Sequence[int], reading: Reading) -> str:
    """One of several answers, with what it was about and what was read of it."""
    labels = [LABELS[slot] for slot in slots]
    if reading.judgement.issues:
        outcome = f"unread: {', '.join(reading.judgement.issues)}"
    elif reading.judgement.verdict is None:
        outcome = f"rated {reading.rating:g}"
    else:
        outcome = f"chose {labels[reading.judgement.verdict]}"
    return f"[{' or '.join(labels)}: {outcome}]\n{reading.judgement.text}"

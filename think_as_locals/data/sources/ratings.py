"""Rated responses to one question -> pairs of them, the higher rated one the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Protocol, TypeVar

from think_as_locals.data.rows import Defect, Fault, Outcome, Row
from think_as_locals.types import Item


class Rated(Protocol):
    """A response with its rating, and its row."""

    @property
    def row(self) -> Row: ...

    response: str
    rating: float


R = TypeVar("R", bound=Rated)


def pair_responses(responses: Sequence[R], pair: Callable[[R, R], Item], limit: int | None) -> Iterator[Outcome]:
    """Yield what becomes of each response to one question: the pairs in which it is the better one.

    Responses with the same rating or the same text make no pair. With a `limit`, only the pairs whose ratings differ
    most are kept.
    """
    pairs = [
        (one, other) if one.rating > other.rating else (other, one)
        for one, other in combinations(responses, 2)
        if one.rating != other.rating and one.response != other.response
    ]
    paired = {id(rated) for rivals in pairs for rated in rivals}
    pairs.sort(key=lambda rivals: rivals[1].rating - rivals[0].rating)
    items: dict[int, list[Item]] = defaultdict(list)
    for better, worse in pairs[:limit]:
        items[id(better)].append(pair(better, worse))
    for rated in responses:
        if id(rated) in paired:
            yield Outcome(rated.row, tuple(items[id(rated)]))
        else:
            message = f"no other response to this question has a rating other than {rated.rating:g}"
            yield Outcome(rated.row, faults=(Fault(Defect.UNPAIRED, message),))

"""The order in which a judge sees the responses of an item."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from think_as_locals.types import Item


def permute(item: Item, order: tuple[int, ...]) -> Item:
    """The item with `responses[order[0]]` first, and so on; `best` and `origins` move along.

    Example:
        >>> item = Item(id="1", prompt="?", responses=("x", "y"), best=0, culture="TH", language="en",
        ...             domain="value", group="g", source="mine")
        >>> permute(item, (1, 0)).best
        1
    """
    return replace(
        item,
        responses=tuple(item.responses[i] for i in order),
        best=order.index(item.best),
        origins=tuple(item.origins[i] for i in order) if item.origins else (),
    )


def present(item: Item, seed: int = 0, reverse: bool = False) -> Item:
    """The item as a judge is shown it: responses in an order that only `seed` and their texts decide.

    Each response is placed by a hash of the seed, the set of all responses and its own text. So a slot tells nothing
    about the answer; the order in which a data set stores responses cannot matter (order-equivariance is exact); and
    the items of a flip set, which share their responses, are shown alike, so that a judge blind to the culture scores
    exactly 1/N. With `reverse` the last of that order comes first: with two responses that is the swap.
    """
    together = _digest(str(seed), *sorted(item.responses))

    def place(i: int) -> str:
        return _digest(together, item.responses[i])

    return permute(item, tuple(sorted(range(len(item.responses)), key=place, reverse=reverse)))


def _digest(*parts: str) -> str:
    # Lengths keep ("ab", "c") apart from ("a", "bc").
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()

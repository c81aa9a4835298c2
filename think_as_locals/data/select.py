"""Which items a run measures itself on, and the labels of its control."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from think_as_locals.data.flips import flip_sets, share
from think_as_locals.types import Item


def select(items: Sequence[Item], limit: int | None) -> tuple[Item, ...]:
    """At most `limit` items, whole flip sets first, drawn from all questions alike."""
    if limit is None or len(items) <= limit:
        return tuple(items)
    chosen: list[Item] = []
    for members in sorted(flip_sets(items), key=lambda members: share(members[0].id)):
        if len(chosen) + len(members) <= limit:
            chosen += members
    taken = {item.id for item in chosen}
    chosen += sorted((item for item in items if item.id not in taken), key=lambda item: share(item.id))
    return tuple(chosen[:limit])


def shuffle_labels(items: Sequence[Item], seed: int) -> tuple[Item, ...]:
    """The control of an experiment: the same items, with a best response drawn at random."""
    rng = random.Random(seed)
    return tuple(replace(item, best=rng.randrange(len(item.responses))) for item in items)

"""Flip sets: the same responses, another culture, another right answer.

Every culture of a set asks for the same N responses and has another one as its best, so that a judge blind to the
culture scores exactly 1/N on the set, and neither the longest, nor the shortest, nor any other trait of a text tells
the answer.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

from think_as_locals.types import Item


def quadruples(
    cultures: Sequence[str], also: Mapping[str, Sequence[str]], size: int, limit: int | None, key: str
) -> list[tuple[str, ...]]:
    """Sets of `size` cultures whose facts exclude one another, spread evenly over the cultures.

    Args:
        cultures: Those that have a fact in the group.
        also: Culture -> other cultures for which its fact holds as well.
        size: N, the number of responses of an item.
        limit: At most this many sets; `None` for all.
        key: Decides, by its hash, which sets are taken.

    Example:
        >>> quadruples(["DE", "JP", "TH"], {"DE": ["JP"]}, size=2, limit=None, key="greeting")
        [('DE', 'TH'), ('JP', 'TH')]
    """
    sets = [
        chosen
        for chosen in combinations(cultures, size)
        if not any(b in also.get(a, ()) for a in chosen for b in chosen)
    ]
    if limit is None or len(sets) <= limit:
        return sets
    random.Random(_digest(key)).shuffle(sets)
    used: Counter[str] = Counter()
    picked = []
    for _ in range(limit):
        # The set whose cultures were used least; a shuffled list makes ties random.
        best = min(sets, key=lambda chosen: sum(used[c] ** 2 for c in chosen))
        sets.remove(best)
        used.update(best)
        picked.append(best)
    return picked


def flip_sets(items: Sequence[Item]) -> list[list[Item]]:
    """Those items that share their responses and question group and differ in their best one, set by set.

    Only whole sets count: as many items as responses, each response the best of exactly one.
    """
    shared: dict[tuple[str, frozenset[str], frozenset[str]], list[Item]] = defaultdict(list)
    for item in items:
        # Two cultures may answer alike: whose answers they are tells their sets apart.
        shared[item.group, frozenset(item.responses), frozenset(item.origins)].append(item)
    sets = []
    for members in shared.values():
        by_language: dict[str, list[Item]] = defaultdict(list)
        for item in members:
            by_language[item.language].append(item)
        # Asked in one language for all cultures, and what is left: in each culture's own.
        whole = [asked for asked in by_language.values() if _is_whole(asked)]
        rest = [item for asked in by_language.values() if not _is_whole(asked) for item in asked]
        sets += whole + ([rest] if _is_whole(rest) else [])
    return sets


def _is_whole(members: Sequence[Item]) -> bool:
    best = {item.responses[item.best] for item in members}
    return bool(members) and len(best) == len(members) == len(members[0].responses)


def richest(items: Sequence[Item], limit: int) -> frozenset[str]:
    """At most `limit` question groups: those with the most flip sets."""
    sets = Counter(members[0].group for members in flip_sets(items))
    return frozenset(sorted({item.group for item in items}, key=lambda group: (-sets[group], share(group)))[:limit])


def share(key: str, seed: int = 0) -> float:
    """A number in [0, 1) that depends on `key` and `seed` alone: what decides a split."""
    return _digest(f"{seed}:{key}") / 2**64


def _digest(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")

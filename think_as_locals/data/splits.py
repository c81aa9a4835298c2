"""Select items, and split them into train, validation and test items without dividing flip sets.

A flip set asks about N cultures with the same N responses, each time with another best one. A judge that ignores the
culture scores exactly 1/N on it, and no property of a text, such as its length, reveals the answer.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Literal

from think_as_locals.types import DataError, Item

Split = Literal["group", "pairing"]


@dataclass(frozen=True, slots=True)
class Splits:
    """Items to train on, to choose a checkpoint by (possibly none), and to report on."""

    train: tuple[Item, ...]
    validation: tuple[Item, ...]
    test: tuple[Item, ...]
    faulty: Sequence[str] = ()  # rows that were left out

    @classmethod
    def by_unit(
        cls, items: Sequence[Item], units: Sequence[str], *, test: Set[str], validation: Set[str] = frozenset()
    ) -> Splits:
        """Split items by their units: those in `test`, those in `validation`, and all others for training."""
        sides: tuple[list[Item], ...] = ([], [], [])
        for item, unit in zip(items, units, strict=True):
            sides[2 if unit in test else 1 if unit in validation else 0].append(item)
        train, held_out, tested = map(tuple, sides)
        return cls(train, held_out, tested)


def split_items(items: Sequence[Item], split: Split, test_share: float, validation_share: float | None) -> Splits:
    """Split items by a hash of their unit, in each domain by the given shares, with at least one unit to test on.

    With `group`, a unit is a question group. With `pairing`, it is all items that ask the same question about the same
    cultures or show the same responses, and it is held out only if the training units show each of its facts.
    """
    units = [item.group for item in items] if split == "group" else _pairing_units(items)
    by_domain: dict[str, set[str]] = defaultdict(set)
    facts: dict[str, set[tuple[str | None, ...]]] = defaultdict(set)
    for item, unit in zip(items, units, strict=True):
        by_domain[item.domain].add(unit)
        if split == "pairing":
            facts[unit].add((item.group, item.culture, item.responses[item.best], "best"))
            facts[unit].update((item.group, *known) for known in zip(item.origins, item.responses, strict=False))
    counts = Counter(fact for of_unit in facts.values() for fact in of_unit)  # number of training units that show it
    test: set[str] = set()
    validation: set[str] = set()

    def take(side: set[str], ordered: Iterable[str], count: int) -> None:
        for unit in ordered:
            if count > 0 and (unit in side or all(counts[fact] > 1 for fact in facts[unit])):
                counts.subtract(facts[unit] if unit not in side else ())
                side.add(unit)
                count -= 1

    for _, of_domain in sorted(by_domain.items()):
        take(test, sorted(of_domain, key=hash_fraction), max(1, round(test_share * len(of_domain))))
    for _, of_domain in sorted(by_domain.items()):
        count = round((validation_share or 0) * len(of_domain))
        take(validation, sorted(of_domain - test, key=hash_fraction), count)
    if validation_share and not validation:  # the domains are small: one unit of any of them
        take(validation, sorted(set(units) - test, key=hash_fraction), 1)
    return Splits.by_unit(items, units, test=test, validation=validation)


def _pairing_units(items: Sequence[Item]) -> list[str]:
    """Return the unit of each item: the connected components of items with the same responses or origins."""
    parent: dict[str, str] = {}

    def name(kind: str, item: Item, texts: Sequence[str]) -> str:
        return "\n".join((kind, item.group, *sorted(texts)))

    keys = [name("responses", item, item.responses) for item in items]
    for item, key in zip(items, keys, strict=True):
        if item.origins:
            # The smaller name is kept, so that it does not depend on the order of the items.
            first, second = sorted(root(parent, each) for each in (key, name("origins", item, item.origins)))
            parent[second] = first
    return [root(parent, key) for key in keys]


def root(parent: dict[str, str], key: str) -> str:
    """Return the name of a key's component: keys point to a parent in it, and the one that points to none names it.

    What it passes then points further up, so that chains stay short.
    """
    while (above := parent.get(key, key)) != key:
        parent[key] = parent.get(above, above)
        key = above
    return key


def flip_set_combinations(
    cultures: Sequence[str],
    also: Mapping[str, Sequence[str]],
    size: int,
    limit: int | None,
    key: str,
    answers: Mapping[str, str] | None = None,
) -> list[tuple[str, ...]]:
    """Return at most `limit` sets of cultures whose facts exclude one another, with all cultures equally often.

    `also[culture]` are other cultures for which its fact holds. Of sets with the same `answers`, one is kept.
    """
    alike = {(culture, other) for culture in cultures for other in also.get(culture, ())}
    sets = [chosen for chosen in combinations(cultures, size) if alike.isdisjoint(product(chosen, repeat=2))]
    if answers and len(set(answers.values())) < len(answers):
        random.Random(_key_digest(key)).shuffle(sets)
        sets = list({frozenset(answers[c] for c in chosen): chosen for chosen in sets}.values())
    if limit is None or len(sets) <= limit:
        return sets
    random.Random(_key_digest(key)).shuffle(sets)
    used, squares = Counter[str](), dict.fromkeys(cultures, 0)
    picked = []
    for _ in range(limit):
        # The set whose cultures were used least; ties are random since the list is shuffled.
        best = min(sets, key=lambda chosen: sum(map(squares.__getitem__, chosen)))
        sets.remove(best)
        used.update(best)
        squares |= {culture: used[culture] ** 2 for culture in best}
        picked.append(best)
    return picked


def flip_sets(items: Sequence[Item]) -> list[list[Item]]:
    """Return the complete flip sets among items: each response is the best of exactly one item."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        groups[item.group].append(index)
    found = []
    for of_group in groups.values():  # one at a time, since the sets of texts take memory
        shared: dict[tuple[frozenset[str], frozenset[str]], list[tuple[int, Item]]] = defaultdict(list)
        best = {items[index].responses[items[index].best] for index in of_group}
        for index in of_group:
            if best.issuperset((item := items[index]).responses):
                # Two cultures may have the same answer: the origins distinguish their sets.
                shared[frozenset(item.responses), frozenset(item.origins)].append((index, item))
        for members in shared.values():
            if len(members) < len(members[0][1].responses):
                continue
            by_language: dict[str, list[Item]] = defaultdict(list)
            for _, item in members:
                by_language[item.language].append(item)
            # A set is asked in one language, or about each culture in its own.
            whole = [part for part in by_language.values() if _is_whole(part)]
            rest = [item for part in by_language.values() if not _is_whole(part) for item in part]
            found.append((members[0][0], whole + ([rest] if _is_whole(rest) else [])))
    return [members for _, sets in sorted(found, key=lambda each: each[0]) for members in sets]


def _is_whole(members: Sequence[Item]) -> bool:
    best = {item.responses[item.best] for item in members}
    cultures = {item.culture for item in members}  # of one culture, other answers contradict each other
    return bool(members) and len(best) == len(cultures) == len(members) == len(members[0].responses)


def hash_fraction(key: str, seed: int = 0) -> float:
    """Return a number in [0, 1) that depends only on `key` and `seed`."""
    return _key_digest(f"{seed}:{key}") / 2**64


def _key_digest(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def split_people(
    items: Iterable[Item], share: float, seed: int, *, by_country: bool, test: Set[str] | None = None
) -> Splits:
    """Split pairs so that no person, or question of a survey, has pairs on both sides.

    With `by_country` the share is taken of each country's groups (at least one), otherwise of all groups together, as
    in SCPO's released code (arXiv 2606.18606). Questions shared by several countries form a stratum of their own. If
    `test` names the groups to test on, nothing is drawn.
    """
    items = tuple(items)
    if not items:
        raise DataError("got no pairs, expected some to train on: is there such a data.groups or data.countries?")
    if odd := next((item for item in items if len(item.responses) != 2 or item.culture is None), None):
        got = "no culture" if odd.culture is None else f"{len(odd.responses)} responses"
        raise DataError(f"item {odd.id!r} has {got}: SCPO trains on pairs of people whose country is known")
    cultures: dict[str, set[str]] = defaultdict(set)
    for item in items:
        cultures[item.group].add(str(item.culture))
    strata: dict[str, list[str]] = defaultdict(list)
    for group, of_group in cultures.items():
        strata[next(iter(of_group)) if by_country and len(of_group) == 1 else "several countries"].append(group)
    if test is None:
        for groups in strata.values():
            groups.sort(key=lambda group: hash_fraction(group, seed))
        test = {group for groups in strata.values() for group in groups[: max(1, round(share * len(groups)))]}
    for culture in sorted(set().union(*cultures.values())):
        sides = {group in test for group, of_group in cultures.items() if culture in of_group}
        if len(sides) < 2:
            side = "test on" if sides == {False} else "train on"
            raise DataError(f"{culture}: nobody to {side} with a test share of {share}: leave this country out")
    return Splits.by_unit(items, [item.group for item in items], test=test)


def select(items: Sequence[Item], limit: int | None, cell: Callable[[Item], str] = lambda _: "") -> tuple[Item, ...]:
    """Return at most `limit` items, complete flip sets first, drawn evenly from all cells; rows of Ties as a whole."""
    if limit is None or len(items) <= limit:
        return tuple(items)
    taken: Counter[str] = Counter()
    chosen = _draw_evenly(flip_sets(items), limit, cell, taken)
    ids = {item.id for item in chosen}
    rest: dict[str, list[Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.id):
        if item.id not in ids:  # RewardBench 2's Ties are scored by whole prompts
            rest[item.group if (item.source, item.domain) == ("rewardbench2", "ties") else item.id].append(item)
    return tuple(chosen + _draw_evenly(rest.values(), limit - len(chosen), cell, taken))


def _draw_evenly(
    sets: Iterable[list[Item]], limit: int, cell: Callable[[Item], str], taken: Counter[str]
) -> list[Item]:
    """Draw whole sets of items, each time one whose cells have the fewest items `taken`; a hash decides ties."""
    queues: dict[tuple[str, ...], list[tuple[float, list[Item]]]] = defaultdict(list)
    hashed = [(hash_fraction(members[0].id), members) for members in sets]
    for rank, members in sorted(hashed, key=lambda each: -each[0]):
        queues[tuple(sorted(map(cell, members)))].append((rank, members))
    chosen: list[Item] = []
    while queues and len(chosen) < limit:
        cells = min(queues, key=lambda cells: (sum(taken[c] for c in cells) / len(cells), queues[cells][-1][0]))
        if len(chosen) + len(cells) <= limit:
            chosen += queues[cells].pop()[1]
            taken.update(cells)
        else:
            queues[cells].clear()
        if not queues[cells]:
            del queues[cells]
    return chosen


def mix(parts: Mapping[str, Sequence[Item]], weights: Mapping[str, float] | None) -> list[tuple[str, Item]]:
    """Return all items with the names of their sources, repeated so that their numbers are proportional to the weights.

    No item is left out: a source with too few is repeated as a whole, and a part of it, drawn by a hash, once more.
    """
    if weights is None:
        return [(name, item) for name, items in parts.items() for item in items]
    scale = max(len(items) / weights[name] for name, items in parts.items())
    mixed = []
    for name, items in parts.items():
        times, rest = divmod(round(scale * weights[name]), len(items))
        mixed += [(name, item) for _ in range(times) for item in items]
        mixed += [(name, item) for item in sorted(items, key=lambda item: hash_fraction(item.id))[:rest]]
    return mixed


def distinct_ids(splits: Mapping[str, Splits]) -> dict[str, Splits]:
    """Put a source's name before the ids, and the groups named after them, that another source has of other items."""
    first, every = dict[str, Item](), [(*sides.train, *sides.validation, *sides.test) for sides in splits.values()]
    shared = {item.id for items in every for item in items if first.setdefault(item.id, item) != item}

    def renamed(name: str, items: Sequence[Item]) -> tuple[Item, ...]:
        found = []
        for item in items:
            group = f"{name}/{item.group}" if item.id.endswith(f"/{item.group}") else item.group
            found.append(replace(item, id=f"{name}/{item.id}", group=group) if item.id in shared else item)
        return tuple(found)

    return {
        name: Splits(renamed(name, sides.train), renamed(name, sides.validation), renamed(name, sides.test))
        for name, sides in splits.items()
    }


def shuffle_labels(items: Sequence[Item], seed: int) -> tuple[Item, ...]:
    """Return the items with random labels, as a control experiment; the best response's origin goes with the label."""
    rng, shuffled = random.Random(seed), []
    for item in items:
        best, origins = rng.randrange(len(item.responses)), [*item.origins]
        if origins:
            origins[best], origins[item.best] = origins[item.best], origins[best]
        shuffled.append(replace(item, best=best, origins=tuple(origins)))
    return tuple(shuffled)

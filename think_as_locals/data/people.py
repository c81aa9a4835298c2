"""Preferences of people, split so that nobody whose preferences were learnt from is tested on."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from think_as_locals.data.load import Splits
from think_as_locals.types import DataError, Item

_SHARED = ""  # the stratum of groups that several countries have in common


def split_people(items: Iterable[Item], share: float, seed: int, *, by_country: bool) -> Splits:
    """Pairs of people to learn from and pairs of other people to test on.

    Args:
        items: Pairs with a culture.
        share: As for `groups_to_test`, like the others.
        seed: Which ones.
        by_country: Whether that share is one of each country's people.

    Raises:
        DataError: there are no items, one is no pair or names no culture; or as for `groups_to_test`.
    """
    every = tuple(items)
    if not every:
        raise DataError("got no pairs, expected some to learn from: is there such a data.groups or data.countries?")
    if odd := [item for item in every if len(item.responses) != 2 or item.culture is None]:
        got = "no culture" if odd[0].culture is None else f"{len(odd[0].responses)} responses"
        raise DataError(f"item {odd[0].id!r} has {got}: SCPO learns from pairs of people whose country is known")
    test = groups_to_test(every, share, seed, by_country=by_country)
    return Splits(
        train=tuple(item for item in every if item.group not in test),
        test=tuple(item for item in every if item.group in test),
    )


def groups_to_test(items: Sequence[Item], share: float, seed: int, *, by_country: bool) -> frozenset[str]:
    """The groups (people, or the questions of a survey) whose items are for testing.

    Args:
        items: Items with a culture; `group` is who is not divided.
        share: Of the groups that are tested on.
        seed: Which ones.
        by_country: Take that share of each country's groups, and at least one; else of all groups at once, as SCPO's
            released code does (arXiv 2606.18606). A group that several countries have, a survey's question, is drawn
            among all such groups in either case, so that it is on the same side for each of them.

    Raises:
        DataError: a country has fewer than two groups, so that one of its sides would be empty.

    Example:
        >>> items = [Item(id=f"{n}", prompt="?", responses=("x", "y"), best=0, culture="TH", language="en",
        ...               domain="value", group=f"person-{n}", source="mine") for n in range(10)]
        >>> len(groups_to_test(items, 0.2, seed=0, by_country=True))
        2
    """
    cultures: dict[str, set[str]] = defaultdict(set)
    for item in items:
        cultures[item.group].add(str(item.culture))
    strata: dict[str, list[str]] = defaultdict(list)
    for group, of_group in cultures.items():
        alone = by_country and len(of_group) == 1
        strata[next(iter(of_group)) if alone else _SHARED].append(group)
    chosen: set[str] = set()
    for groups in strata.values():
        groups.sort(key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).digest())
        chosen.update(groups[: max(1, round(share * len(groups)))])
    for culture in sorted(set().union(*cultures.values())):
        sides = {group in chosen for group, of_group in cultures.items() if culture in of_group}
        if len(sides) < 2:
            side = "test on" if sides == {False} else "learn from"
            raise DataError(f"{culture}: nobody to {side} with a test share of {share}: leave this country out")
    return frozenset(chosen)

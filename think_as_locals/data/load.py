"""A data configuration -> items -> a split into train and test that cannot leak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from think_as_locals.data import blend, culture_cards, opinion_cards
from think_as_locals.data.flips import richest, share
from think_as_locals.data.importers import row_outcomes
from think_as_locals.data.outcomes import mark_repeats, sound_items
from think_as_locals.data.spec import DataSpec, Split, path_of
from think_as_locals.types import DataError, Item


@dataclass(frozen=True, slots=True)
class Splits:
    """Items to learn from and items to be measured on."""

    train: tuple[Item, ...]
    test: tuple[Item, ...]


def load(data: DataSpec, seed: int = 0) -> Splits:
    """Read a source and split it.

    Raises:
        DataError: a fault in the data, or a split of which one side is empty.
    """
    if data.source == "culture_cards" and data.split == "pairing" and "own" in data.languages:
        # Every Thai item is about Thailand: having seen its facts in training, one need not read the question.
        raise DataError("data.split=pairing with data.languages=own measures memory alone: use en, or data.split=group")
    items = tuple(read(data, seed))
    units = split_units(items, data.split)
    test = _test_units(items, units, data.test_share)
    splits = Splits(
        train=tuple(item for item, unit in zip(items, units, strict=True) if unit not in test),
        test=tuple(item for item, unit in zip(items, units, strict=True) if unit in test),
    )
    if not splits.train or not splits.test:
        raise DataError(
            f"{data.source}: {len(items)} items give {len(splits.train)} to train on and {len(splits.test)} to test on "
            f"with data.split={data.split} and data.test_share={data.test_share}: change one of them, or add data"
        )
    return splits


def read(data: DataSpec, seed: int = 0) -> Iterator[Item]:
    """All items of a source, of the question groups and countries that are asked for.

    Raises:
        DataError: a fault in the data, or (behind the last item) a country that no item is about.
    """
    items = _every_country(data, seed)
    return items if data.countries is None else _of_countries(items, data.countries)


def _of_countries(items: Iterator[Item], countries: Sequence[str]) -> Iterator[Item]:
    seen = set()
    for item in items:
        seen.add(item.culture)
        if item.culture in countries:
            yield item
    if missing := [country for country in countries if country not in seen]:
        there = ", ".join(sorted(culture for culture in seen if culture)) or "none"
        raise DataError(f"data.countries: no items of {', '.join(map(repr, missing))}; there are items of: {there}")


def _every_country(data: DataSpec, seed: int) -> Iterator[Item]:
    if data.source == "culture_cards":
        items = culture_cards.read(
            languages=data.languages,
            groups=data.groups,
            num_responses=data.num_responses,
            sets_per_group=data.sets_per_group,
            seed=seed,
        )
        return _richest(items, data.max_groups)
    if data.source == "opinion_cards":
        return opinion_cards.read(groups=data.groups, seed=seed)
    if data.source != "blend":
        return sound_items(mark_repeats(row_outcomes(data)))
    items = blend.read(
        Path(path_of(data)).expanduser(),
        languages=data.languages,
        num_responses=data.num_responses,
        sets_per_group=data.sets_per_group,
        seed=seed,
    )
    return _richest((item for item in items if data.groups is None or item.group in data.groups), data.max_groups)


def _richest(items: Iterator[Item], limit: int | None) -> Iterator[Item]:
    if limit is None:
        return items
    every = tuple(items)
    kept = richest(every, limit)
    return (item for item in every if item.group in kept)


def split_units(items: Sequence[Item], split: Split) -> list[str]:
    """Of each item, the unit that must not be divided.

    With `group` that is its question group; with `pairing`, whatever asks the same question about the same cultures (in
    any language) or shows the same responses.
    """
    if split == "group":
        return [item.group for item in items]
    unit: dict[str, str] = {}

    def root(key: str) -> str:
        while unit.setdefault(key, key) != key:
            key = unit[key]
        return key

    keys = [_key("responses", item.group, item.responses) for item in items]
    for item, key in zip(items, keys, strict=True):
        if item.origins:
            # The smaller name wins, so that a unit is called the same in whatever order its items come.
            first, second = sorted((root(key), root(_key("origins", item.group, item.origins))))
            unit[second] = first
    return [root(key) for key in keys]


def _key(kind: str, group: str, texts: Sequence[str]) -> str:
    return "\n".join((kind, group, *sorted(texts)))


def _test_units(items: Sequence[Item], units: Sequence[str], test_share: float) -> set[str]:
    """The test side: of each domain the share that comes first by hash, and at least one unit."""
    by_domain: dict[str, set[str]] = defaultdict(set)
    for item, unit in zip(items, units, strict=True):
        by_domain[item.domain].add(unit)
    test: set[str] = set()
    for of_domain in by_domain.values():
        test.update(sorted(of_domain, key=share)[: max(1, round(test_share * len(of_domain)))])
    return test

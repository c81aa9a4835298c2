"""The items of a data configuration, split into train and test without leaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from think_as_locals.data.faults import mark_repeats, valid_items
from think_as_locals.data.sources import SOURCES, row_outcomes
from think_as_locals.data.splits import Splits, split_items
from think_as_locals.types import DataError, Item

if TYPE_CHECKING:
    from think_as_locals.config.schema import DataSection


def load(data: DataSection, seed: int = 0) -> Splits:
    """Read a source and split it.

    Raises:
        DataError: a fault in the data, or a split of which one side is empty.
    """
    if data.source == "culture_cards" and data.split == "pairing" and "own" in data.languages:
        # Every Thai item is about Thailand: with its facts seen in training, the question need not be read.
        raise DataError("data.split=pairing with data.languages=own measures memory alone: use en, or data.split=group")
    items = tuple(read(data, seed))
    splits = split_items(items, data.split, data.test_share)
    if not splits.train or not splits.test:
        raise DataError(
            f"{data.source}: {len(items)} items give {len(splits.train)} to train on and {len(splits.test)} to test on "
            f"with data.split={data.split} and data.test_share={data.test_share}: change one of them, or add data"
        )
    return splits


def read(data: DataSection, seed: int = 0) -> Iterator[Item]:
    """Yield all items of a source, of the question groups and countries that the configuration asks for.

    Raises:
        DataError: a fault in the data, or (after the last item) a country that no item is about.
    """
    source = SOURCES[data.source]
    items = source.items(data, seed) if source.items else valid_items(mark_repeats(row_outcomes(data, seed)))
    return items if data.countries is None else _of_countries(items, data.countries)


def _of_countries(items: Iterator[Item], countries: Sequence[str]) -> Iterator[Item]:
    seen = set()
    for item in items:
        seen.add(item.culture)
        if item.culture in countries:
            yield item
    if missing := [country for country in countries if country not in seen]:
        known = ", ".join(sorted(culture for culture in seen if culture)) or "none"
        raise DataError(f"data.countries: no items of {', '.join(map(repr, missing))}; there are items of: {known}")

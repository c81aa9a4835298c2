"""Select items by the keys of the `data` section, in the same way for every source."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from think_as_locals.config.compose import nearest
from think_as_locals.data.splits import flip_sets, hash_fraction, select
from think_as_locals.types import DataError, DataWarning, Item, first_of, reorder_responses

if TYPE_CHECKING:
    from think_as_locals.config.schema import DataSection

_MAX_NAMES = 20  # in a message


def choose(items: Iterable[Item], data: DataSection, applied: Set[str], seed: int) -> Sequence[Item]:
    """Return the selected items; keys that the source has `applied` itself are skipped.

    The keys apply in this order: languages, question groups, countries, the largest question groups, the number of
    responses, pairs, the number of items. A `DataError` names values that no item has.
    """
    if "languages" not in applied:
        items = _matching("data.languages", data.languages, items, lambda item: _with_primary(item.language))
    if "groups" not in applied:
        items = _matching("data.groups", data.groups, items, lambda item: {item.group})
    items = _matching("data.countries", data.countries, items, lambda item: _with_primary(item.culture or ""))
    items = _largest_groups(items, data.max_groups)
    if (size := data.num_responses) is not None:
        items = _of_size(items, size, seed)
    if data.as_pairs:
        items = [pair for item in items for pair in _pairs(item)]
    return select(tuple(items), data.max_items)


def _matching(
    key: str, wanted: Sequence[str] | None, items: Iterable[Item], names: Callable[[Item], Set[str]]
) -> Iterable[Item]:
    """Return the items with a wanted name."""
    if wanted is None:
        return items
    items = tuple(items)
    known = sorted(set().union(*map(names, items)) - {""})
    if missing := [name for name in wanted if name not in known]:
        raise DataError(
            f"{key}: no items of {', '.join(map(repr, missing))}; there are items of: "
            f"{first_of(known, _MAX_NAMES) or 'none'}{nearest(missing[0], known)}"
        )
    return [item for item in items if not names(item).isdisjoint(wanted)]


def _with_primary(code: str) -> set[str]:
    """Return a code and its first part: `zh-Hant` and `zh` (BCP-47), `CA-QC` and `CA` (ISO 3166-2)."""
    return {code, code.partition("-")[0]}


def _largest_groups(items: Iterable[Item], limit: int | None) -> Iterable[Item]:
    """Return the items of the `limit` question groups with the most flip sets, or if there are none the most items."""
    if limit is None:
        return items
    items = tuple(items)
    sizes = Counter(members[0].group for members in flip_sets(items)) or Counter(item.group for item in items)
    groups = sorted({item.group for item in items}, key=lambda group: (-sizes[group], hash_fraction(group)))[:limit]
    return [item for item in items if item.group in groups]


def _of_size(items: Iterable[Item], size: int, seed: int) -> Iterable[Item]:
    """Reduce items to the best response and others drawn by a hash; leave out shorter items with a warning."""
    items = tuple(items)
    long_enough = [item for item in items if len(item.responses) >= size]
    short = [item.id for item in items if len(item.responses) < size]
    if items and not long_enough:
        most = max(len(item.responses) for item in items)
        raise DataError(f"data.num_responses: got {size}, but no item has more than {most} responses")
    if short:
        message = f"data.num_responses={size}: left out {len(short):,} items with fewer, such as {short[0]!r}"
        warnings.warn(message, DataWarning, stacklevel=2)
    return [_cut(item, size, seed) for item in long_enough]


def _cut(item: Item, size: int, seed: int) -> Item:
    wrong = sorted(_wrong(item), key=lambda i: hash_fraction(f"{item.id}/{i}", seed))
    return reorder_responses(item, sorted([item.best, *wrong[: size - 1]]))


def _pairs(item: Item) -> list[Item]:
    """Return a pair of the best response and each other one, all in the item's question group."""
    if len(item.responses) == 2:
        return [item]
    return [replace(reorder_responses(item, sorted((item.best, i))), id=f"{item.id}/pair-{i}") for i in _wrong(item)]


def _wrong(item: Item) -> list[int]:
    return [i for i in range(len(item.responses)) if i != item.best]

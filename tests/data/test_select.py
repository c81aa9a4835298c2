"""Which items are measured, and the control's labels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from think_as_locals.data.select import select, shuffle_labels
from think_as_locals.types import Item


def test_select_takes_whole_flip_sets_first(item: Item) -> None:
    flips = [
        replace(item, id=f"flip-{i}", culture=culture, best=i) for i, culture in enumerate(("US", "TH", "JP", "ES"))
    ]
    single = replace(item, id="single", responses=("a", "b", "c", "d"))
    assert {chosen.id for chosen in select([single, *flips], 4)} == {f"flip-{i}" for i in range(4)}
    assert len(select([single, *flips], None)) == 5


def test_shuffled_labels_tell_nothing_and_keep_the_rest(item: Item) -> None:
    items = [replace(item, id=str(i)) for i in range(2000)]
    shuffled = shuffle_labels(items, seed=0)
    assert sum(one.best == item.best for one in shuffled) / 2000 == pytest.approx(0.25, abs=0.04)
    assert all(replace(one, best=item.best) == before for one, before in zip(shuffled, items, strict=True))

"""The order in which a judge sees responses: decided by seed and texts, equivariant, even."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from items import make_item

from think_as_locals.judging import permute, present
from think_as_locals.types import Item

quick = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)


def an_item(responses: tuple[str, ...], best: int = 0, **changes: Any) -> Item:
    return make_item(responses=responses, best=best, **changes)


@st.composite
def items(draw: st.DrawFn) -> Item:
    responses = draw(st.lists(texts, min_size=2, max_size=8, unique=True))
    origins = tuple(f"C{i}" for i in range(len(responses))) if draw(st.booleans()) else ()
    return an_item(tuple(responses), draw(st.integers(0, len(responses) - 1)), origins=origins)


@quick
@given(items(), st.data(), st.integers(0, 5))
def test_the_order_in_which_responses_are_stored_does_not_matter(item: Item, data: st.DataObject, seed: int) -> None:
    order = tuple(data.draw(st.permutations(range(len(item.responses)))))
    assert present(permute(item, order), seed) == present(item, seed)


@quick
@given(items(), st.data())
def test_label_best_and_origin_move_together_with_the_response(item: Item, data: st.DataObject) -> None:
    order = tuple(data.draw(st.permutations(range(len(item.responses)))))
    moved = permute(item, order)
    assert moved.responses == tuple(item.responses[i] for i in order)
    assert moved.responses[moved.best] == item.responses[item.best]
    if item.origins:
        assert dict(zip(moved.responses, moved.origins, strict=True)) == dict(
            zip(item.responses, item.origins, strict=True)
        )


@quick
@given(items(), st.integers(0, 2**40))
def test_presenting_changes_nothing_but_the_order(item: Item, seed: int) -> None:
    shown = present(item, seed)
    assert sorted(shown.responses) == sorted(item.responses)
    assert shown.responses[shown.best] == item.responses[item.best]
    assert (shown.id, shown.prompt, shown.culture, shown.group) == (item.id, item.prompt, item.culture, item.group)
    assert present(shown, seed) == shown


@quick
@given(items(), st.data())
def test_which_response_is_the_best_does_not_decide_where_it_stands(item: Item, data: st.DataObject) -> None:
    other = an_item(item.responses, data.draw(st.integers(0, len(item.responses) - 1)), culture="JP", prompt="Why?")
    assert present(other).responses == present(item).responses


def test_two_responses_change_places_with_the_seed() -> None:
    assert {present(an_item(("x", "y")), seed).responses for seed in range(20)} == {("x", "y"), ("y", "x")}


def test_over_seeds_every_order_of_three_responses_is_about_equally_frequent() -> None:
    item = an_item(("rice", "toast", "porridge"))
    seen = Counter(present(item, seed).responses for seed in range(3000))
    assert set(seen) == set(permutations(item.responses))
    assert all(400 < count < 600 for count in seen.values())


@pytest.mark.parametrize("size", [2, 4, 8])
def test_over_items_the_best_response_stands_about_equally_often_at_every_position(size: int) -> None:
    bests = Counter(
        present(an_item(tuple(f"answer {i}.{j}" for j in range(size)), best=0)).best for i in range(size * 500)
    )
    assert all(400 < bests[position] < 600 for position in range(size))


def test_where_the_texts_are_cut_decides_the_order_too() -> None:
    pairs = [(f"ab{i}", f"c{i}") for i in range(40)]
    moved = [(f"a{i}", f"bc{i}") for i in range(40)]
    orders = [present(an_item(pair)).responses[0] == pair[0] for pair in pairs]
    assert orders != [present(an_item(pair)).responses[0] == pair[0] for pair in moved]
    assert 5 < sum(orders) < 35


def test_the_order_is_the_same_today_and_tomorrow() -> None:
    item = an_item(("Rice and miso soup.", "Toast with butter.", "Stewed fava beans.", "Rice noodles in broth."))
    assert [present(item, seed).best for seed in range(8)] == [3, 0, 1, 1, 2, 2, 1, 1]

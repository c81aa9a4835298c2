"""Flip sets: the same responses, another culture, another right answer."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data import flip_sets
from think_as_locals.data.flips import quadruples, share
from think_as_locals.types import Item

quick = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

CULTURES = ("EG", "CN", "US", "DE", "JP", "KR", "RU", "ES", "TH", "VN")


def an_item(best: int, responses: tuple[str, ...] = ("tea", "soup", "bread"), **changes: Any) -> Item:
    return make_item(responses=responses, best=best, **{"id": f"{best}", "culture": CULTURES[best]} | changes)


holds_too = st.dictionaries(
    st.sampled_from(CULTURES), st.lists(st.sampled_from(CULTURES), max_size=3, unique=True), max_size=6
).map(lambda also: {culture: [other for other in others if other != culture] for culture, others in also.items()})


@quick
@given(holds_too, st.integers(2, 8), st.one_of(st.none(), st.integers(1, 40)))
def test_cultures_of_a_set_exclude_one_another(also: dict[str, list[str]], size: int, limit: int | None) -> None:
    sets = quadruples(CULTURES, also, size, limit, key="k")
    possible = [
        chosen
        for chosen in combinations(CULTURES, size)
        if not any(b in also.get(a, ()) for a in chosen for b in chosen)
    ]
    assert set(sets) <= set(possible)
    assert len(sets) == len(set(sets)) == (len(possible) if limit is None else min(limit, len(possible)))


def test_without_overlaps_there_are_210_sets_of_four_of_ten() -> None:
    assert len(quadruples(CULTURES, {}, 4, None, "k")) == 210


@settings(quick, max_examples=25)
@given(st.integers(5, 60), st.text(max_size=10))
def test_sets_are_spread_evenly_over_the_cultures(limit: int, key: str) -> None:
    used = Counter(culture for chosen in quadruples(CULTURES, {}, 4, limit, key) for culture in chosen)
    counts = [used[culture] for culture in CULTURES]
    assert sum(counts) == 4 * limit
    assert max(counts) - min(counts) <= 3


def test_the_key_decides_which_sets_are_taken() -> None:
    taken = [quadruples(CULTURES, {}, 4, 10, key) for key in ("a", "a", "b")]
    assert taken[0] == taken[1] != taken[2]


def test_a_whole_set_is_found_whatever_the_order_of_items_and_responses() -> None:
    members = [an_item(2), an_item(0), an_item(1, ("bread", "soup", "tea"))]
    assert flip_sets(members) == [members]


def test_a_set_that_lacks_an_item_does_not_count() -> None:
    assert flip_sets([an_item(0), an_item(1)]) == []


def test_a_set_in_which_two_items_have_the_same_best_does_not_count() -> None:
    assert flip_sets([an_item(0), an_item(1), an_item(1, id="again", culture="TH")]) == []


def test_items_of_another_question_do_not_complete_a_set() -> None:
    assert flip_sets([an_item(0), an_item(1), an_item(2, group="other")]) == []


def test_items_without_flips_are_left_out() -> None:
    members = [an_item(i) for i in range(3)]
    single = an_item(0, ("rice", "noodles"), id="single")
    assert flip_sets([single, *members]) == [members]


def test_no_items_have_no_flip_sets() -> None:
    assert flip_sets([]) == []


def test_the_same_set_asked_in_two_languages_is_two_sets() -> None:
    english = [an_item(i, id=f"en-{i}") for i in range(3)]
    local = [an_item(i, id=f"xx-{i}", language=("ar", "zh", "es")[i]) for i in range(3)]
    sets = flip_sets([*english, *local])
    assert sorted(len(members) for members in sets) == [3, 3]
    for members in sets:
        assert sorted(item.best for item in members) == [0, 1, 2]


def test_shares_are_spread_evenly_from_0_to_1_and_depend_on_key_and_seed_alone() -> None:
    shares = [share(f"key {i}") for i in range(2000)]
    assert all(0 <= value < 1 for value in shares)
    tenths = Counter(int(value * 10) for value in shares)
    assert all(140 < tenths[i] < 260 for i in range(10))
    assert share("key", 1) == share("key", 1) != share("key", 2)

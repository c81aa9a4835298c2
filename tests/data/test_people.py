"""Splits by people: who is learnt from is not tested on, in whatever order their pairs come."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data.people import groups_to_test, split_people
from think_as_locals.types import DataError, Item


def pair(person: str, culture: str | None, number: int = 0, size: int = 2) -> Item:
    responses = tuple(f"response {i}" for i in range(size))
    told = {"id": f"{person}/{culture}/{number}", "prompt": f"What about {number}?", "responses": responses}
    return make_item(**told, culture=culture, group=person)


def people(sizes: Mapping[str, int], pairs: int = 2) -> list[Item]:
    """Some people of each country, and some pairs of each."""
    return [pair(f"{c}-{i}", c, number) for c, size in sizes.items() for i in range(size) for number in range(pairs)]


def drawn(items: Iterable[Item], share: float = 0.15, seed: int = 0, *, by_country: bool = True) -> frozenset[str]:
    return groups_to_test(tuple(items), share, seed, by_country=by_country)


def test_the_share_is_one_of_each_countrys_people_and_of_all_pairs_of_theirs() -> None:
    splits = split_people(people({"TH": 40, "CL": 20, "EG": 10}, pairs=3), 0.15, 0, by_country=True)
    assert Counter(item.culture for item in splits.test) == {"TH": 18, "CL": 9, "EG": 6}  # round(1.5) is 2
    assert len(splits.train) + len(splits.test) == 210
    assert {item.group for item in splits.train}.isdisjoint(item.group for item in splits.test)


def test_pairs_keep_their_order() -> None:
    items = people({"TH": 12, "CL": 12}, pairs=3)
    splits = split_people(items, 0.2, 0, by_country=True)
    for side in (splits.train, splits.test):
        assert list(side) == [item for item in items if item in set(side)]


def test_at_least_one_person_of_each_country_is_tested_on() -> None:
    chosen = drawn(people({"TH": 2, "CL": 3, "EG": 2}), share=0.01)
    assert Counter(group[:2] for group in chosen) == {"TH": 1, "CL": 1, "EG": 1}


def test_together_takes_the_share_of_all_people_whatever_their_country() -> None:
    items = people({"TH": 90, "CL": 10})
    chosen = drawn(items, 0.3, by_country=False)
    assert len(chosen) == 30
    by_seed = {Counter(g[:2] for g in drawn(items, 0.3, seed, by_country=False))["CL"] for seed in range(6)}
    assert len(by_seed) > 1  # by country it would be 3 with any seed
    assert {Counter(g[:2] for g in drawn(items, 0.3, seed))["CL"] for seed in range(6)} == {3}


@pytest.mark.parametrize("by_country", [True, False])
def test_a_question_that_several_countries_were_asked_is_on_the_same_side_for_all(*, by_country: bool) -> None:
    asked = [("TH", "CL"), ("CL", "EG"), ("EG", "TH")] * 4
    shared = [pair(f"question-{n}", culture) for n, cultures in enumerate(asked) for culture in cultures]
    alone = [pair(f"thai-{n}", "TH") for n in range(6)]
    splits = split_people([*shared, *alone], 0.3, 2, by_country=by_country)
    sides = [{item.group for item in side} for side in (splits.train, splits.test)]
    assert sides[0].isdisjoint(sides[1])
    if (
        by_country
    ):  # that share of all that are shared (country by country it would be 1 of 4, thrice), and of the others
        assert Counter(group.partition("-")[0] for group in sides[1]) == {"question": 4, "thai": 2}
    else:
        assert len(sides[1]) == 5


countries = st.dictionaries(st.sampled_from(["TH", "CL", "EG", "JP"]), st.integers(2, 12), min_size=1)


@given(countries, st.floats(0.05, 0.6), st.integers(0, 99), st.booleans(), st.randoms(use_true_random=False))
def test_nobody_is_on_both_sides_and_the_order_of_pairs_decides_nothing(
    sizes: dict[str, int], share: float, seed: int, by_country: bool, rng: random.Random
) -> None:
    items = people(sizes)
    try:
        splits = split_people(items, share, seed, by_country=by_country)
    except DataError:
        assert not by_country  # together, a country may be on one side alone
        return
    learnt, kept = ({item.group for item in side} for side in (splits.train, splits.test))
    assert learnt.isdisjoint(kept)
    assert len(splits.train) + len(splits.test) == len(items)
    for culture, size in sizes.items():
        of_country = {group for group in kept if group.startswith(culture)}
        assert 1 <= len(of_country) < size
        if by_country:
            assert len(of_country) == max(1, round(share * size))
    shuffled = rng.sample(items, len(items))
    assert set(split_people(shuffled, share, seed, by_country=by_country).test) == set(splits.test)


def test_the_seed_decides_who() -> None:
    items = people({"TH": 40, "CL": 40})
    assert drawn(items) == drawn(items)
    assert len({drawn(items, seed=seed) for seed in range(5)}) == 5


def test_people_of_another_country_do_not_change_who_is_tested_on() -> None:
    one, both = people({"TH": 40}), people({"TH": 40, "CL": 25})
    assert drawn(one) == {group for group in drawn(both) if group.startswith("TH")}


@pytest.mark.parametrize(
    ("sizes", "share", "said"),
    [
        ({"TH": 5, "CL": 1}, 0.2, "CL: nobody to learn from with a test share of 0.2: leave this country out"),
        ({"TH": 5, "CL": 3}, 0.9, "CL: nobody to learn from with a test share of 0.9"),
    ],
)
def test_a_country_without_a_side_is_an_error(sizes: dict[str, int], share: float, said: str) -> None:
    with pytest.raises(DataError, match=said):
        split_people(people(sizes), share, 0, by_country=True)


def test_together_a_country_may_have_nobody_to_test_on() -> None:
    with pytest.raises(DataError, match=r"CL: nobody to test on with a test share of 0\.02: leave this country out"):
        split_people(people({"TH": 60, "CL": 2}), 0.02, 0, by_country=False)


def test_what_is_no_pair_or_of_no_country_is_an_error() -> None:
    sound = people({"TH": 4})
    with pytest.raises(DataError, match="item 'x/TH/0' has 3 responses: SCPO learns from pairs of people"):
        split_people([*sound, pair("x", "TH", size=3)], 0.2, 0, by_country=True)
    with pytest.raises(DataError, match="item 'x/None/0' has no culture"):
        split_people([*sound, pair("x", None)], 0.2, 0, by_country=True)


def test_no_pairs_at_all_are_an_error() -> None:
    with pytest.raises(DataError, match=r"got no pairs, expected some .* data\.groups or data\.countries"):
        split_people([], 0.2, 0, by_country=True)

"""Flip sets, splits of items and people, selection of evaluation items, mixes and shuffled labels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from items import make_item

from think_as_locals.data import flip_sets
from think_as_locals.data.splits import (
    Split,
    Splits,
    flip_set_combinations,
    mix,
    select,
    shuffle_labels,
    split_items,
    split_people,
)
from think_as_locals.types import DataError, Item

quick = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])

CULTURES = ("EG", "CN", "US", "DE", "JP", "KR", "RU", "ES", "TH", "VN")


def an_item(best: int, responses: tuple[str, ...] = ("tea", "soup", "bread"), **changes: Any) -> Item:
    return make_item(responses=responses, best=best, **{"id": f"{best}", "culture": CULTURES[best]} | changes)


overlapping_cultures = st.dictionaries(
    st.sampled_from(CULTURES), st.lists(st.sampled_from(CULTURES), max_size=3, unique=True), max_size=6
).map(lambda also: {culture: [other for other in others if other != culture] for culture, others in also.items()})


@quick
@given(overlapping_cultures, st.integers(2, 8), st.one_of(st.none(), st.integers(1, 40)))
def test_flip_set_combinations_exclude_overlapping_cultures(
    also: dict[str, list[str]], size: int, limit: int | None
) -> None:
    sets = flip_set_combinations(CULTURES, also, size, limit, key="k")
    overlapping = {frozenset((culture, other)) for culture, others in also.items() for other in others}
    possible = {
        chosen
        for chosen in combinations(CULTURES, size)
        if overlapping.isdisjoint(map(frozenset, combinations(chosen, 2)))
    }
    assert set(sets) <= possible
    assert len(sets) == len(set(sets)) == (len(possible) if limit is None else min(limit, len(possible)))


@settings(quick, max_examples=25)
@given(st.integers(5, 60), st.text(max_size=10))
def test_flip_set_combinations_are_balanced_over_cultures(limit: int, key: str) -> None:
    used = Counter(culture for chosen in flip_set_combinations(CULTURES, {}, 4, limit, key) for culture in chosen)
    counts = [used[culture] for culture in CULTURES]
    assert sum(counts) == 4 * limit
    assert max(counts) - min(counts) <= 3


def test_complete_flip_sets_are_found_by_language() -> None:
    members = [an_item(2), an_item(0), an_item(1, ("bread", "soup", "tea"))]
    assert flip_sets([an_item(0, ("rice", "noodles"), id="single"), *members]) == [members]
    english = [an_item(i, id=f"en-{i}") for i in range(3)]
    local = [an_item(i, id=f"xx-{i}", language=("ar", "zh", "es")[i]) for i in range(3)]
    sets = flip_sets([*english, *local])
    assert sorted(len(members) for members in sets) == [3, 3]
    for members in sets:
        assert sorted(item.best for item in members) == [0, 1, 2]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [an_item(0), an_item(1)],
        [an_item(0), an_item(1), an_item(1, id="again", culture="TH")],
        [an_item(0), an_item(1), an_item(2, group="other")],
        *([an_item(best, culture=culture) for best in range(3)] for culture in ("TH", None)),  # they contradict
    ],
    ids=["no items", "one is missing", "two with the same best", "another question", "one culture", "no culture"],
)
def test_incomplete_flip_set_is_not_found(items: list[Item]) -> None:
    assert flip_sets(items) == []


# --- splits of items ---


def facts(items: Iterable[Item]) -> set[tuple[str | None, ...]]:
    """What items say: each one's answer, and whose the others are as far as they tell."""
    answers = {(item.group, item.culture, item.responses[item.best], "best") for item in items}
    return answers | {
        (item.group, *known) for item in items for known in zip(item.origins, item.responses, strict=False)
    }


def units(items: Iterable[Item], split: Split) -> set[Any]:
    """What the items of one side of a split have alone."""
    if split == "group":
        return {item.group for item in items}
    return {(item.group, frozenset(texts)) for item in items for texts in (item.origins, item.responses) if texts}


def sides(splits: Splits) -> tuple[tuple[Item, ...], ...]:
    return (splits.train, splits.validation, splits.test)


@st.composite
def item_lists(draw: st.DrawFn) -> list[Item]:
    """Items of a few questions whose cultures have one or two answers each, some of them without origins."""
    rng, items = draw(st.randoms(use_true_random=False)), []
    for number in range(draw(st.integers(1, 60))):
        origins = tuple(rng.sample(CULTURES[:5], rng.choice((2, 3))))
        texts, best = tuple(f"{rng.choice('xy')} of {culture}" for culture in origins), rng.randrange(len(origins))
        about = {"culture": origins[best], "group": rng.choice("gh"), "domain": rng.choice("de")}
        items.append(make_item(id=f"{number}", responses=texts, best=best, **about, origins=rng.choice((origins, ()))))
    return items


@settings(quick, max_examples=60)
@given(
    st.sampled_from(["group", "pairing"]),
    item_lists(),
    st.floats(0.01, 0.6),
    st.sampled_from([None, 0.1, 0.4]),
    st.randoms(use_true_random=False),
)
def test_splits_share_no_unit_and_pairing_tests_only_facts_in_training(
    split: Split, items: list[Item], test_share: float, validation_share: float | None, rng: random.Random
) -> None:
    splits = split_items(items, split, test_share, validation_share)
    assert sorted(item.id for side in sides(splits) for item in side) == sorted(item.id for item in items)
    for one, other in combinations(sides(splits), 2):
        assert not units(one, split) & units(other, split)
    if split == "pairing":
        assert facts((*splits.test, *splits.validation)) <= facts(splits.train)
    else:
        assert splits.test
        assert splits.validation or not (validation_share and splits.train)  # one unit at least
    shuffled = split_items(rng.sample(items, len(items)), split, test_share, validation_share)
    assert [{item.id for item in side} for side in sides(shuffled)] == [
        {item.id for item in side} for side in sides(splits)
    ]
    # Validation is taken from what would be trained on: figures on the test side stay comparable.
    assert split_items(items, split, test_share, None).test == splits.test


@pytest.mark.parametrize(("split", "tested"), [("group", 10), ("pairing", 0)])
def test_fact_of_a_single_item_is_not_tested_by_pairing(split: Split, tested: int) -> None:
    items = [make_item(id=f"{i}", group=f"g{i}") for i in range(50)]
    assert len(split_items(items, split, 0.2, None).test) == tested


def test_pairing_split_skips_combinations_that_would_hide_a_fact() -> None:
    cultures = dict(zip("abcd", CULTURES, strict=False))
    texts = [("a", "b"), ("a", "c"), ("b", "c"), ("a", "d")]  # what d says is shown once
    items = [
        make_item(id=f"{pair}{best}", responses=pair, origins=tuple(cultures[text] for text in pair), best=best)
        for pair in texts
        for best in (0, 1)
    ]
    items = [replace(item, culture=item.origins[item.best]) for item in items]
    for share, tested in ((0.25, 2), (0.5, 4), (0.9, 4)):  # after two sets, each of the others shows what no other does
        splits = split_items(items, "pairing", share, None)
        assert len(splits.test) == tested
        assert "d" not in {text for item in splits.test for text in item.responses}


# --- splits of people ---


def pair(person: str, culture: str | None, number: int = 0, size: int = 2) -> Item:
    responses = tuple(f"response {i}" for i in range(size))
    asked = {"id": f"{person}/{culture}/{number}", "prompt": f"What about {number}?", "responses": responses}
    return make_item(**asked, culture=culture, group=person)


def people(sizes: Mapping[str, int], pairs: int = 2) -> list[Item]:
    """Some people of each country, and some pairs of each."""
    return [pair(f"{c}-{i}", c, number) for c, size in sizes.items() for i in range(size) for number in range(pairs)]


def drawn(items: Iterable[Item], share: float = 0.15, seed: int = 0, *, by_country: bool = True) -> frozenset[str]:
    return frozenset(item.group for item in split_people(items, share, seed, by_country=by_country).test)


@pytest.mark.parametrize("by_country", [True, False])
def test_shared_question_is_in_one_split_for_all_countries(*, by_country: bool) -> None:
    asked = [("TH", "CL"), ("CL", "EG"), ("EG", "TH")] * 4
    shared = [pair(f"question-{n}", culture) for n, cultures in enumerate(asked) for culture in cultures]
    alone = [pair(f"thai-{n}", "TH") for n in range(6)]
    splits = split_people([*shared, *alone], 0.3, 2, by_country=by_country)
    train, test = ({item.group for item in side} for side in (splits.train, splits.test))
    assert train.isdisjoint(test)
    if by_country:  # that share of all that are shared (country by country: 1 of 4, thrice), and of the others
        assert Counter(group.partition("-")[0] for group in test) == {"question": 4, "thai": 2}
    else:
        assert len(test) == 5


countries = st.dictionaries(st.sampled_from(["TH", "CL", "EG", "JP"]), st.integers(2, 12), min_size=1)


@given(countries, st.floats(0.05, 0.6), st.integers(0, 99), st.booleans(), st.randoms(use_true_random=False))
def test_split_people_is_disjoint_and_independent_of_order(
    sizes: dict[str, int], share: float, seed: int, by_country: bool, rng: random.Random
) -> None:
    items = people(sizes)
    try:
        splits = split_people(items, share, seed, by_country=by_country)
    except DataError:
        assert not by_country  # together, a country may be on one side alone
        return
    train, test = ({item.group for item in side} for side in (splits.train, splits.test))
    assert train.isdisjoint(test)
    assert len(splits.train) + len(splits.test) == len(items)
    for culture, size in sizes.items():
        of_country = {group for group in test if group.startswith(culture)}
        assert 1 <= len(of_country) < size
        if by_country:
            assert len(of_country) == max(1, round(share * size))
    for side in (splits.train, splits.test):
        assert list(side) == [item for item in items if item in set(side)]
    shuffled = rng.sample(items, len(items))
    assert set(split_people(shuffled, share, seed, by_country=by_country).test) == set(splits.test)


def test_people_are_drawn_by_country_and_seed_or_given() -> None:
    one, both = people({"TH": 40}), people({"TH": 40, "CL": 25})
    assert drawn(one) == {group for group in drawn(both) if group.startswith("TH")}
    assert len({drawn(both, seed=seed) for seed in range(5)}) == 5
    items = people({"TH": 9, "CL": 5})
    splits = split_people(items, 0.15, 0, by_country=False, test={"TH-1", "CL-4", "elsewhere"})
    assert {item.group for item in splits.test} == {"TH-1", "CL-4"}
    with pytest.raises(DataError, match="CL: nobody to test on"):
        split_people(items, 0.15, 0, by_country=False, test={"TH-1"})


@pytest.mark.parametrize(
    ("items", "share", "by_country", "message"),
    [
        (people({"TH": 5, "CL": 1}), 0.2, True, "CL: nobody to train on with a test share of 0.2: leave this country"),
        (people({"TH": 60, "CL": 2}), 0.02, False, "CL: nobody to test on with a test share of 0.02: leave this"),
        ([pair("x", "TH", size=3)], 0.2, True, "item 'x/TH/0' has 3 responses: SCPO trains on pairs of people"),
        ([pair("x", None)], 0.2, True, "item 'x/None/0' has no culture"),
        ([], 0.2, True, r"got no pairs, expected some .* data\.groups or data\.countries"),
    ],
)
def test_split_people_rejects_empty_splits_and_invalid_items(
    items: list[Item], share: float, *, by_country: bool, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        split_people(items, share, 0, by_country=by_country)


# --- the items to evaluate on ---


def test_select_takes_complete_flip_sets_first_from_all_cells(item: Item) -> None:
    flips = [replace(item, id=f"flip-{i}", culture=culture, best=i) for i, culture in enumerate(item.origins)]
    single = replace(item, id="single", responses=("a", "b", "c", "d"))
    assert {chosen.id for chosen in select([single, *flips], 4)} == {f"flip-{i}" for i in range(4)}
    assert len(select([single, *flips], None)) == 5

    def flip_set(group: str, number: int, domain: str) -> list[Item]:
        texts = tuple(f"{text} {group} {number}" for text in ("tea", "soup", "bread"))
        return [an_item(i, texts, id=f"{group}-{number}-{i}", domain=domain, group=group) for i in range(3)]

    many = [item for number in range(40) for item in flip_set("many", number, "food")]
    few = [item for number in range(3) for item in flip_set("few", number, "manners")]
    chosen = select([*many, *few], 19, one_cell_of)
    assert Counter(item.domain for item in chosen) == {"food": 10, "manners": 9}
    assert len(flip_sets(chosen)) == 6


def one_cell_of(item: Item) -> str:
    return f"{item.culture}/{item.domain}"


@quick
@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=60), st.integers(1, 60), st.randoms())
def test_select_balances_items_over_cells(domains: list[str], limit: int, rng: random.Random) -> None:
    items = [an_item(0, id=f"{i}", domain=domain) for i, domain in enumerate(domains)]
    chosen = select(items, limit, one_cell_of)
    assert len(chosen) == min(limit, len(items))
    counted, available = Counter(item.domain for item in chosen), Counter(domains)
    most = max(counted.values())
    assert all(counted[domain] >= min(available[domain], most - 1) for domain in available)
    assert set(chosen) == set(select(rng.sample(items, len(items)), limit, one_cell_of))


def test_select_takes_rows_of_ties_as_a_whole() -> None:
    """Which count as right if all of their items are: of a part of them that would be easier."""
    common = {"domain": "ties", "source": "rewardbench2"}
    sizes = {f"ties:{n}": 8 + 2 * n for n in range(6)}  # two rows of each
    rows = [(f"{row}:{n}", f"ties:{n}", k) for n in range(6) for row, k in (("tied", 3 + n), ("ref", 1))]
    ties = [
        an_item(0, id=f"rewardbench2/{row}/{i}-{start}-of-{k}x9", group=group, **common)
        for row, group, k in rows
        for i in range(k)
        for start in (0, 7)
    ]
    items = [*ties, *(an_item(0, id=f"rewardbench2/{n}", **common | {"domain": "math"}) for n in range(40))]
    for limit in range(2, len(items)):
        chosen = select(items, limit, one_cell_of)
        taken = Counter(item.group for item in chosen if item.domain == "ties")
        assert taken == {group: sizes[group] for group in taken}
        assert len(chosen) <= limit
        assert set(chosen) == set(select(random.Random(limit).sample(items, len(items)), limit, one_cell_of))


@quick
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    weights=st.none() | st.lists(st.floats(0.05, 20), min_size=4, max_size=4),
)
def test_mix_repeats_items_in_proportion_to_weights(sizes: list[int], weights: list[float] | None) -> None:
    parts = {f"s{s}": [make_item(id=f"{s}-{i}") for i in range(size)] for s, size in enumerate(sizes)}
    given_weights = None if weights is None else dict(zip(parts, weights, strict=False))
    mixed = mix(parts, given_weights)
    assert mix(parts, given_weights) == mixed
    for name, items in parts.items():
        times = Counter(item.id for source, item in mixed if source == name)
        assert times.keys() == {item.id for item in items}
        assert max(times.values()) - min(times.values()) <= 1
        if given_weights is None:
            assert set(times.values()) == {1}
        else:
            scale = max(len(parts[n]) / given_weights[n] for n in parts)
            assert times.total() == pytest.approx(scale * given_weights[name], abs=0.5)


def test_shuffled_labels_are_at_chance_and_take_the_origin_with_them(item: Item) -> None:
    items = [replace(item, id=str(i)) for i in range(2000)]
    shuffled = shuffle_labels(items, seed=0)
    assert sum(one.best == item.best for one in shuffled) / 2000 == pytest.approx(0.25, abs=0.04)
    assert {one.origins[one.best] for one in shuffled} == {item.origins[item.best]}
    assert all(sorted(one.origins) == sorted(item.origins) for one in shuffled)
    kept = [replace(one, best=item.best, origins=item.origins) for one in shuffled]
    assert kept == items

"""A data configuration -> items -> a split that cannot leak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
from data.sections import data_section
from items import make_item

from think_as_locals.config.schema import DataSection
from think_as_locals.data import load, read
from think_as_locals.data.sources import jsonl
from think_as_locals.types import DataError, Item

GROUPS = [
    *(
        "hot_drink",
        "table_taboo",
        "idiom_crowded",
        "lucky_charm",
        "egg_dish",
        "gift_taboo",
        "typical_soup",
        "work_custom",
    ),
    *("street_snack", "birthday_custom", "house_taboo", "proverb_patience"),
]


def an_item(number: int, **changes: Any) -> Item:
    asked = {"id": f"item {number}", "prompt": f"Question {number}?", "responses": (f"yes {number}", f"no {number}")}
    return make_item(**asked | {"domain": ("food", "work")[number % 2], "group": f"group {number // 4}"} | changes)


def written(folder: Path, items: Iterable[Item], **changes: Any) -> DataSection:
    path = folder / "items.jsonl"
    jsonl.write(items, path)
    return data_section(source="jsonl", path=str(path), **changes)


@pytest.mark.parametrize("split", ["group", "pairing"])
@pytest.mark.parametrize("test_share", [0.02, 0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_item_is_on_one_side_and_no_key_on_both(
    split: Literal["group", "pairing"], test_share: float, seed: int
) -> None:
    spec = data_section(split=split, test_share=test_share, groups=GROUPS, languages=["en", "th"])
    both = load(spec, seed)
    assert sorted(item.id for item in (*both.train, *both.test)) == sorted(item.id for item in read(spec, seed))
    train, test = (
        {(item.group, frozenset(item.origins) if split == "pairing" else None) for item in side}
        for side in (both.train, both.test)
    )
    assert train
    assert test
    assert not train & test


def test_the_groups_with_the_most_flip_sets_are_kept() -> None:
    sizes = Counter(item.group for item in read(data_section(groups=GROUPS, sets_per_group=None)))
    kept = {item.group for item in read(data_section(groups=GROUPS, sets_per_group=None, max_groups=3))}
    assert len(kept) == 3
    assert min(sizes[group] for group in kept) >= max(sizes[group] for group in sizes.keys() - kept)
    assert list(read(data_section(groups=GROUPS, max_groups=12))) == list(read(data_section(groups=GROUPS)))


def test_of_ones_own_items_none_is_left_out(tmp_path: Path) -> None:
    assert len(list(read(written(tmp_path, map(an_item, range(40)), max_groups=2)))) == 40


@pytest.mark.parametrize("languages", [("en",), ("own",), ("en", "own"), ("en", "de", "th")])
def test_a_group_split_shares_no_question(languages: tuple[str, ...]) -> None:
    both = load(data_section(languages=list(languages), groups=GROUPS))
    assert not {item.group for item in both.train} & {item.group for item in both.test}
    assert not {item.prompt for item in both.train} & {item.prompt for item in both.test}


def test_a_pairing_of_facts_in_their_cultures_own_language_is_refused() -> None:
    with pytest.raises(DataError, match="memory alone"):
        load(data_section(split="pairing", languages=["en", "own"], groups=GROUPS))


@pytest.mark.parametrize("languages", [("en",), ("en", "de", "th")])
def test_a_pairing_split_shares_no_set_of_responses_in_any_language(languages: tuple[str, ...]) -> None:
    both = load(data_section(split="pairing", languages=list(languages), sets_per_group=20, groups=GROUPS))
    train, test = ({(item.group, frozenset(item.origins)) for item in side} for side in (both.train, both.test))
    assert not train & test
    texts = [{frozenset(item.responses) for item in side} for side in (both.train, both.test)]
    assert not texts[0] & texts[1]
    assert {item.group for item in both.test} <= {item.group for item in both.train}


def alike(count: int) -> list[Item]:
    """In each group the same two texts twice, once as the one Korea's answer and once as the other's."""
    return [
        an_item(
            i,
            responses=(f"kimchi {i // 2}", f"rice {i // 2}"),
            origins=(("KR", "KP")[i % 2], "CN"),
            culture=("KR", "KP")[i % 2],
            group=f"g{i // 2}",
            domain="food",
        )
        for i in range(count)
    ]


def test_a_pairing_split_shares_no_set_of_responses_where_two_cultures_answer_alike(tmp_path: Path) -> None:
    both = load(written(tmp_path, alike(100), split="pairing", test_share=0.5))
    texts = [{frozenset(item.responses) for item in side} for side in (both.train, both.test)]
    assert not texts[0] & texts[1]


def test_without_origins_a_pairing_is_its_set_of_texts_in_whatever_order(tmp_path: Path) -> None:
    items = [
        an_item(i, responses=(("a", "b")[i % 2] + str(i // 2), ("b", "a")[i % 2] + str(i // 2)), group="g", domain="d")
        for i in range(100)
    ]
    both = load(written(tmp_path, items, split="pairing"))
    texts = [{frozenset(item.responses) for item in side} for side in (both.train, both.test)]
    assert not texts[0] & texts[1]
    assert len(both.test) == 20


def test_every_domain_gives_its_share_to_the_test_side(tmp_path: Path) -> None:
    items = [
        an_item(i, group=f"{'food' if i < 100 else 'work'} {i}", domain="food" if i < 100 else "work")
        for i in range(400)
    ]
    both = load(written(tmp_path, items, test_share=0.25))
    assert sum(item.domain == "food" for item in both.test) == 25
    assert sum(item.domain == "work" for item in both.test) == 75


def test_a_group_that_stands_in_several_domains_goes_to_one_side_as_a_whole(tmp_path: Path) -> None:
    both = load(written(tmp_path, [an_item(i) for i in range(200)]))
    assert {item.domain for item in both.test} == {"food", "work"}
    assert not {item.group for item in both.train} & {item.group for item in both.test}


@pytest.mark.parametrize("split", ["group", "pairing"])
@pytest.mark.parametrize("items", [[an_item(i) for i in range(120)], alike(120)], ids=["apart", "alike"])
def test_the_split_does_not_depend_on_the_seed_or_the_order_of_rows(
    tmp_path: Path, items: list[Item], split: Literal["group", "pairing"]
) -> None:
    (tmp_path / "turned").mkdir()
    spec = written(tmp_path, items, split=split, test_share=0.4)
    turned = written(tmp_path / "turned", reversed(items), split=split, test_share=0.4)
    assert load(spec, 0) == load(spec, 1)
    assert {item.id for item in load(spec).test} == {item.id for item in load(turned).test}


def test_loading_twice_gives_the_same_splits() -> None:
    spec = data_section(languages=["en", "own"], groups=GROUPS)
    assert load(spec, 2) == load(spec, 2)


def test_an_empty_side_is_an_error_that_says_what_to_change() -> None:
    with pytest.raises(DataError, match=r"20 items.*data\.split=group.*data\.test_share=0\.2"):
        load(data_section(groups=["hot_drink"]))


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"jsonl: 0 items"):
        load(written(tmp_path, []))


@pytest.mark.parametrize("source", ["blend", "jsonl"])
def test_a_source_of_files_without_a_path_is_an_error(source: Literal["blend", "jsonl"]) -> None:
    with pytest.raises(DataError, match=rf"data={source} reads files: set data\.path"):
        load(data_section(source=source))


def test_a_tilde_in_the_path_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = written(tmp_path, [an_item(i) for i in range(40)])
    assert len(list(read(spec.model_copy(update={"path": "~/items.jsonl"})))) == 40


@pytest.mark.parametrize("source", ["culture_cards", "jsonl"])
def test_the_countries_asked_for_are_kept_whatever_the_source(
    tmp_path: Path, source: Literal["culture_cards", "jsonl"]
) -> None:
    items = [an_item(i, culture=("TH", "CL", None)[i % 3]) for i in range(12)]
    spec = data_section(groups=GROUPS) if source == "culture_cards" else written(tmp_path, items)
    kept = list(read(spec.model_copy(update={"countries": ["TH"]})))
    assert kept == [item for item in read(spec) if item.culture == "TH"]
    assert kept


def test_a_country_that_no_item_is_about_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    items = [an_item(i, culture=("TH", "CL", None)[i % 3]) for i in range(12)]
    with pytest.raises(DataError, match=r"data\.countries: no items of 'CHL'; there are items of: CL, TH"):
        load(written(tmp_path, items, countries=["TH", "CHL"]))


def test_the_groups_asked_for_are_read_from_a_file_too(tmp_path: Path) -> None:
    spec = written(tmp_path, [an_item(i) for i in range(40)], groups=["group 1", "group 2"])
    assert {item.group for item in read(spec)} == {"group 1", "group 2"}

"""Selection keys of `data.*`: which items of a source are used and in what form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data.sections import data_section
from data.tables import write
from hypothesis import given
from hypothesis import strategies as st
from items import make_item

from think_as_locals.config.checks import load_data_config
from think_as_locals.config.compose import quoted
from think_as_locals.data import flip_sets, load, read
from think_as_locals.data.cards import cultures
from think_as_locals.data.load import choose
from think_as_locals.data.sources import SOURCES, jsonl
from think_as_locals.data.splits import select
from think_as_locals.data.validate import build
from think_as_locals.judging import render
from think_as_locals.types import DataError, DataWarning, Item

CULTURES, LANGUAGES = ("TH", "CL", "CA-QC"), ("th", "es", "fr", "zh-Hant")


def an_item(number: int, size: int = 4, **changes: Any) -> Item:
    asked = {"id": f"item {number}", "prompt": f"Question {number}?", "best": number % size}
    known = {"responses": [f"{letter}{number}" for letter in "abcdefgh"[:size]], "group": f"group {number // 4}"}
    place = {"culture": CULTURES[number % 3], "language": LANGUAGES[number % 4]}
    return make_item(**asked | known | place | changes)


def chosen(items: Iterable[Item], seed: int = 0, **keys: Any) -> list[Item]:
    return list(choose(items, data_section(source="jsonl", **keys), frozenset(), seed))


ITEMS = [an_item(i) for i in range(24)]


@pytest.mark.parametrize(
    ("key", "values", "kept"),
    [
        ("languages", ["es"], {1, 5, 9, 13, 17, 21}),
        ("languages", ["es", "zh"], {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}),
        ("languages", ["zh-Hant"], {3, 7, 11, 15, 19, 23}),
        ("groups", ["group 5", "group 0"], {0, 1, 2, 3, 20, 21, 22, 23}),
        ("countries", ["TH"], set(range(0, 24, 3))),
        ("countries", ["CA"], set(range(2, 24, 3))),
        ("countries", ["CA-QC", "CL"], {i for i in range(24) if i % 3}),
    ],
)
def test_languages_groups_and_countries_filter_items(key: str, values: list[str], kept: set[int]) -> None:
    other = an_item(99, culture=None, language="xx", group="other")
    assert chosen([*ITEMS, other], **{key: values}) == [ITEMS[i] for i in sorted(kept)]
    assert chosen([*ITEMS, other]) == [*ITEMS, other]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"languages": ["es", "en"]}, "data.languages: no items of 'en'; there are items of: es, fr, th, zh, zh-Hant"),
        ({"groups": ["group 55"]}, "data.groups: no items of 'group 55'; there are items of: group 0, group 1, gro"),
        ({"groups": ["group 55"]}, "group 4, group 5; did you mean 'group 5'?"),
        ({"countries": ["CHL"]}, "data.countries: no items of 'CHL'; there are items of: CA, CA-QC, CL, TH"),
        ({"languages": ["th"], "groups": ["group 1"], "countries": ["TH"]}, "there are items of: CL"),
        ({"num_responses": 5}, "data.num_responses: got 5, but no item has more than 4 responses"),
    ],
)
def test_unmatched_key_error_lists_the_available_values(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        chosen(ITEMS, **keys)
    assert message in str(error.value)


def test_max_groups_keeps_the_groups_with_most_flip_sets_and_items() -> None:
    sizes = {"a": 3, "b": 9, "c": 5, "d": 5, "e": 9}
    items = [an_item(100 * n + i, group=name) for n, (name, size) in enumerate(sizes.items()) for i in range(size)]
    assert {item.group for item in chosen(items, max_groups=2)} == {"b", "e"}
    three = {item.group for item in chosen(items, max_groups=3)}
    assert three in ({"b", "e", "c"}, {"b", "e", "d"})
    assert {item.group for item in chosen(reversed(items), max_groups=3)} == three
    assert chosen(items, max_groups=5) == items
    # One whole set outweighs any number of single items.
    sets = [an_item(0, 2, best=i, id=f"flip {i}", group="few", culture=c) for i, c in enumerate(("CL", "TH"))]
    many = [an_item(i, group="many") for i in range(1, 9)]
    assert chosen([*many, *sets], max_groups=1) == sets


@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 7), st.integers(0, 99))
def test_num_responses_keeps_the_best_and_the_order(size: int, count: int, best: int, seed: int) -> None:
    item = an_item(1, size, best=best % size, origins=[f"o{i}" for i in range(size)])
    if size < count:
        with pytest.raises(DataError, match="no item has more"):
            chosen([item], seed, num_responses=count)
        return
    (cut,) = chosen([item], seed, num_responses=count)
    assert len(cut.responses) == count
    assert cut.responses[cut.best] == item.responses[item.best]
    assert [text for text in item.responses if text in cut.responses] == list(cut.responses)
    assert [origin[1:] for origin in cut.origins] == [str(item.responses.index(text)) for text in cut.responses]
    assert cut.id == item.id


def test_num_responses_draws_wrong_ones_and_drops_items_with_too_few() -> None:
    items = [an_item(i, best=0) for i in range(600)]
    drawn = Counter(item.responses[1][0] for item in chosen(items, num_responses=2))
    assert all(150 < drawn[letter] < 250 for letter in "bcd")
    assert chosen(items, num_responses=2) == chosen(items, num_responses=2) != chosen(items, 1, num_responses=2)
    items = [an_item(0), an_item(1, 2), an_item(2, 3), an_item(3, 5)]
    with pytest.warns(DataWarning, match=r"^data\.num_responses=4: left out 2 items with fewer, such as 'item 1'$"):
        assert [item.id for item in chosen(items, num_responses=4)] == ["item 0", "item 3"]


def test_as_pairs_gives_the_best_with_each_other_response() -> None:
    known = {"responses": ["a", "b", "c", "d"], "origins": ["TH", "CL", "JP", "EG"], "best": 2}
    pairs = chosen([an_item(7, **known), an_item(8, 2)], as_pairs=True)
    assert [(pair.id, pair.responses, pair.best, pair.origins) for pair in pairs[:3]] == [
        ("item 7/pair-0", ("a", "c"), 1, ("TH", "JP")),
        ("item 7/pair-1", ("b", "c"), 1, ("CL", "JP")),
        ("item 7/pair-3", ("c", "d"), 0, ("JP", "EG")),
    ]
    assert {pair.group for pair in pairs[:3]} == {"group 1"}  # so that no split divides them
    assert pairs[3] == an_item(8, 2)
    drawn = chosen([an_item(i) for i in range(9)], num_responses=3, as_pairs=True)
    assert len(drawn) == 18
    spec = data_section(groups=["gift_taboo", "hot_drink"], sets_per_group=2, as_pairs=True)
    pairs = read(spec)
    assert len(pairs) == 2 * 2 * 4 * 3
    assert len(flip_sets(pairs)) == len(pairs) / 2
    assert len({pair.id for pair in pairs}) == len(pairs)


def test_max_items_takes_complete_flip_sets_in_any_item_order() -> None:
    spec = data_section(sets_per_group=3)
    some = read(spec.model_copy(update={"max_items": 50}))
    assert list(some) == list(select(tuple(read(spec)), 50))
    assert len(flip_sets(some)) == 12
    assert {item.id for item in chosen(ITEMS, max_items=7)} == {item.id for item in chosen(ITEMS[::-1], max_items=7)}
    assert len(chosen(ITEMS, as_pairs=True, max_items=10)) == 10
    assert chosen(ITEMS, max_items=24) == ITEMS


# --- for every source ---


def _row(number: int) -> dict[str, Any]:
    """A row of CARB about Germany or Thailand."""
    language, country = (("German", "Germany"), ("Thai", "Thailand"))[number % 2]
    texts = {"prompt": f"Question {number}?", "chosen": [f"right {number}"]}
    known = {"id": str(number), "language": language, "country": country, "subset": "cultural_value"}
    return texts | known | {"rejected": [f"wrong {letter} {number}" for letter in "abc"]}


@pytest.mark.parametrize("source", ["culture_cards", "opinion_cards", "jsonl", "carb"])
def test_selection_keys_apply_to_every_source(tmp_path: Path, source: str) -> None:
    words = [f"data={source}", *(["data.sets_per_group=2"] if source == "culture_cards" else [])]
    if source == "jsonl":
        jsonl.write(read(data_section(languages=["en", "own"], sets_per_group=2)), tmp_path / "rows.jsonl")
    elif not source.endswith("_cards"):
        write(tmp_path / "rows.jsonl", [_row(number) for number in range(40)])
    if not source.endswith("_cards"):
        words.append(f"data.path={quoted(str(tmp_path / 'rows.jsonl'))}")
    everything = load_data_config(words).data
    language = next(item.language for item in read(everything) if item.culture == "DE")
    keys = ["num_responses=2", f"languages=[{language}]", "countries=[DE]", "max_groups=12", "max_items=20"]
    spec = load_data_config([*words, *(f"data.{key}" for key in keys)]).data
    items = read(spec)
    assert 0 < len(items) <= 20
    assert {len(item.responses) for item in items} == {2}
    assert {item.language for item in items} == {language}
    assert {item.culture for item in items} == {"DE"}
    assert len({item.group for item in items}) <= 12
    splits = load(spec)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == len(items)
    if SOURCES[source].outcomes:
        tally = build(spec, tmp_path / "built.jsonl", strict=False)
        assert list(jsonl.read(tmp_path / "built.jsonl")) == list(items)
        assert str(tally).endswith(f"0 in quarantine; {len(items)} items written, as data.* asks")


def test_hide_place_removes_the_culture_or_skips_the_item() -> None:
    named = read(data_section(languages=["en", "own"], sets_per_group=2))
    hidden = read(data_section(languages=["en", "own"], sets_per_group=2, hide_place=True))
    assert [replace(item, prompt="?") for item in hidden] == [replace(item, prompt="?") for item in named]
    for item, full in zip(hidden, named, strict=True):
        assert cultures()[str(item.culture)]["place"][item.language] in full.prompt
        assert len(item.prompt) < len(full.prompt)
    # So the four items of a flip set differ only in the culture that the prompt of a judge names.
    for members in flip_sets(hidden):
        assert len({item.prompt for item in members}) == 1
        for shown, distinct in (("stated", 4), ("inferred", 1), ("hidden", 1)):
            assert len({render(item, culture=shown)[1]["content"] for item in members}) == distinct
    asked = ["What do people in Mexico eat?", "What is pozole?", "Which Mexican dish is best?"]
    items = [make_item(id=prompt, prompt=prompt, culture="MX", language="en") for prompt in asked]
    with pytest.warns(DataWarning, match=r"data\.hide_place: left out 2 items .* such as 'What is pozole\?'"):
        assert [item.prompt for item in chosen(items, hide_place=True)] == ["What do people eat?"]
    with pytest.raises(DataError, match=r"data\.hide_place: no question names its place"):
        chosen(items[1:], hide_place=True)

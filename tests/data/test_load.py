"""Loading: a data configuration selects items and gives leak-free splits."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
from data.sections import data_section
from data.tables import carb_row, write
from hypothesis import given
from hypothesis import strategies as st
from items import make_item

from think_as_locals.config.checks import load_data_config, load_recipe
from think_as_locals.config.compose import quoted
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import DataSection
from think_as_locals.data import flip_sets, load, read
from think_as_locals.data.cards import cultures
from think_as_locals.data.load import (
    Candidates,
    TrainingData,
    check_leaks,
    choose,
    join_groups,
    load_training_data,
    read_candidates,
)
from think_as_locals.data.sources import SOURCES, jsonl
from think_as_locals.data.splits import select
from think_as_locals.data.validate import build
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.judging import render
from think_as_locals.types import DataError, DataWarning, Item


def an_item(number: int, **changes: Any) -> Item:
    asked = {"id": f"item {number}", "prompt": f"Question {number}?", "responses": (f"yes {number}", f"no {number}")}
    return make_item(**asked | {"domain": ("food", "work")[number % 2], "group": f"group {number // 4}"} | changes)


def write_items(folder: Path, items: Iterable[Item], **changes: Any) -> DataSection:
    path = folder / "items.jsonl"
    jsonl.write(items, path)
    return data_section(source="jsonl", path=str(path), **changes)


def test_load_rejects_empty_splits_leaky_pairings_and_missing_paths(tmp_path: Path) -> None:
    refused = {
        r"20 items.*data\.split=group.*data\.test_share=0\.2": data_section(groups=["hot_drink"]),
        "memory alone": data_section(split="pairing", languages=["en", "own"]),
        r"data=blend reads files: set data\.path": data_section(source="blend"),
        r"data=jsonl reads files: set data\.path": data_section(source="jsonl"),
        "0 to test on .*pairing holds": write_items(tmp_path, map(an_item, range(40)), split="pairing"),
    }
    for message, data in refused.items():
        with pytest.raises(DataError, match=message):
            load(data)


def test_test_split_takes_its_share_of_every_domain(tmp_path: Path) -> None:
    domains = ["food"] * 100 + ["work"] * 300
    items = [an_item(i, group=f"{domain} {i}", domain=domain) for i, domain in enumerate(domains)]
    both = load(write_items(tmp_path, items, test_share=0.25))
    assert Counter(item.domain for item in both.test) == {"food": 25, "work": 75}


def test_read_expands_home_and_returns_all_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = write_items(tmp_path, map(an_item, range(40))).model_copy(update={"path": "~/items.jsonl"})
    assert [item.id for item in read(at_home)] == [f"item {i}" for i in range(40)]


# --- candidates ---


def candidates(**changes: Any) -> dict[str, Any]:
    row = {"id": "1", "prompt": "?", "culture": "TH", "language": "th", "candidates": ["a", "b", "a"]}
    return row | changes


def test_candidates_are_read_in_any_number_and_of_any_culture(tmp_path: Path) -> None:
    many = {"id": "2", "culture": None, "candidates": [str(i) for i in range(40)], "qualities": [0] * 40}
    rows = [candidates(qualities=[1, 2.5, -3]), candidates(**many)]
    first, second = read_candidates(write(tmp_path / "c.jsonl", rows))
    known = {"id": "1", "prompt": "?", "culture": "TH", "language": "th"}
    assert first == Candidates(**known, texts=("a", "b", "a"), qualities=(1.0, 2.5, -3.0))
    assert (second.culture, len(second.texts)) == (None, 40)
    # Regions of BLEnD, languages of CARB: those of questions are written to candidates.
    cultures = {"ID-JB": "ID-JB", "Arabic-speaking countries": "Arabic-speaking countries", "Thai": "TH"}
    found = read_candidates(write(tmp_path / "c.jsonl", [candidates(id=name, culture=name) for name in cultures]))
    assert {each.id: each.culture for each in found} == cultures


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": ["a", " "]}, "candidates.1: "),
        ({"culture": "Thialand"}, "did you mean 'TH'"),
        ({"qualities": [1, 2]}, "a quality for each of 3 candidates, got [1, 2]"),
        ({"qualities": [1, 2, 3]}, "expected qualities in all rows or in none"),
        *(({"qualities": [1, bad, 3]}, "qualities.1: ") for bad in (10**400, nan)),
        ({"id": "1"}, "id '1' is already in an earlier row"),
    ],
)
def test_invalid_candidates_row_error_names_file_and_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = write(tmp_path / "c.jsonl", [candidates(), candidates(id="2") | change])
    with pytest.raises(DataError) as error:
        read_candidates(file)
    assert str(error.value).startswith(f"{file}:2: ")
    assert message in str(error.value)


def test_candidates_error_lists_at_most_ten_faults(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", [candidates(id=str(i), prompt="") for i in range(13)])
    with pytest.raises(DataError, match="and 3 more") as error:
        read_candidates(file)
    assert len(str(error.value).splitlines()) == 11
    with pytest.raises(DataError, match="no rows"):
        read_candidates(write(file, []))


@pytest.fixture
def two_sets(tmp_path: Path) -> tuple[RunConfig, TrainingData]:
    """A run on 40 items that measures its own test items, all of them and the same test items again."""
    jsonl.write((an_item(i) for i in range(40)), tmp_path / "items.jsonl")
    file = f"{tmp_path}/items.jsonl"
    places = [f"eval.sets.{name}" for name in ("every", "same")]
    sets = [word for place in places for word in (f"{place}=jsonl", f"{place}.data.path={file}")]
    mine = ["data=jsonl", f"data.path={file}", "data.split=group", "data.validation_share=null"]
    config = load_recipe("recipes/quickstart.yaml", [*mine, *sets, "eval.sets.same.items=test"])
    return config, load_training_data(config, BREAKDOWNS["cell"])


def test_eval_set_with_training_items_is_rejected_or_reported(two_sets: tuple[RunConfig, TrainingData]) -> None:
    config, data = two_sets
    assert {name: len(each.items) for name, each in data.sets.items()} == {"test": 8, "every": 40, "same": 8}
    with pytest.raises(DataError, match=r"^every: 32 items are training items too[\s\S]*eval\.leaks=report"):
        check_leaks(config, data)
    reported = config.model_copy(update={"eval": config.eval.model_copy(update={"leaks": "report"})})
    with pytest.warns(DataWarning, match=r"^every: 32 items are training items too \(32 by id\)") as warned:
        check_leaks(reported, data)
    assert "same" not in str(warned[0].message)


def test_only_the_own_pairing_split_may_share_questions_with_training(two_sets: tuple[RunConfig, TrainingData]) -> None:
    config, data = two_sets
    question = [dataclasses.replace(item, id=f"again-{item.id}", culture="JP") for item in data.train[:3]]
    asked = dataclasses.replace(data.sets["same"], split="pairing", items=tuple(question))
    with warnings.catch_warnings(action="error"):
        check_leaks(config, dataclasses.replace(data, sets={"test": asked}))
    with pytest.raises(DataError, match=r"^same: 3 items are training items too"):
        check_leaks(config, dataclasses.replace(data, sets={"same": asked}))


def test_cells_that_may_stand_for_empty_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,chosen,rejected\nBreakfast?,Rice.,N/A\nLunch?,nan,Toast.\nDinner?,Rice.,Toast.\n")
    with pytest.warns(DataWarning, match=r"rows\.csv:2: 'N/A' may stand for an empty cell; .*:3: 'nan'"):
        assert len(read(data_section(source="rows", path=str(path)))) == 3


def test_split_depends_on_no_order_of_rows_whose_prompts_repeat(tmp_path: Path) -> None:
    rows = [{"id": n, "prompt": f"Question {n // 3}?", "chosen": f"a{n}", "rejected": f"b{n}"} for n in range(60)]
    sides = []
    for order in (1, -1):
        path = write(tmp_path / f"rows{order}.jsonl", rows[::order])
        sides.append(load(data_section(source="rows", path=str(path), test_share=0.3)))
    tested = [{item.prompt for item in side.test} for side in sides]
    assert tested[0] == tested[1]
    assert not tested[0] & {item.prompt for item in sides[0].train}
    (named,) = {item.group for item in read(data_section(source="rows", path=str(path), groups=["rows/4"]))}
    assert named == "rows/4"


def test_many_questions_that_share_groups_take_linear_time(tmp_path: Path) -> None:
    groups = [str((n + 1) // 2) for n in range(40_000)]
    items = [an_item(n, id=f"item/{n}/{group}", group=group, prompt=f"{n // 2}?") for n, group in enumerate(groups)]
    began = time.process_time()
    assert len({item.group for item in join_groups(items)}) == 1
    assert time.process_time() - began < 5


def test_sources_of_a_mix_with_the_same_ids_keep_their_items_apart(tmp_path: Path) -> None:
    words = ["data=mix"]
    for name in ("th", "vn"):
        lines = [f"{n},{name} {n}?,yes {n},no {n},{name.upper()}" for n in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,prompt,chosen,rejected,culture", *lines]))
        words += [f"data.mix.{name}=rows", f"data.mix.{name}.path={tmp_path / name}.csv"]
    data = load_training_data(load_recipe("recipes/quickstart.yaml", words), lambda _: "")
    items = [*data.train, *data.sets["test"].items, *data.sets["validation"].items]
    by_id = {item.id: item for item in items}
    assert all(by_id[item.id] == item for item in items)
    assert len(by_id) == len({item.group for item in items}) == 40


def test_rows_left_out_of_a_training_are_counted_with_its_sets(tmp_path: Path) -> None:
    rows = [{"prompt": f"Question {n}?", "chosen": "yes", "rejected": "no" if n % 5 else "yes"} for n in range(50)]
    path = write(tmp_path / "rows.jsonl", rows)
    config = load_recipe("recipes/quickstart.yaml", ["data=rows", f"data.path={path}"])
    with pytest.warns(DataWarning, match="left out 10 of 50 rows"):
        data = load_training_data(config, BREAKDOWNS["cell"])
    assert {name: len(each.faulty) for name, each in data.sets.items()} == dict.fromkeys(data.sets, 10)


# --- selection: which items of a source are used, and in what form ---


CULTURES, LANGUAGES = ("TH", "CL", "CA-QC"), ("th", "es", "fr", "zh-Hant")


def sized(number: int, size: int = 4, **changes: Any) -> Item:
    asked = {"id": f"item {number}", "prompt": f"Question {number}?", "best": number % size}
    known = {"responses": [f"{letter}{number}" for letter in "abcdefgh"[:size]], "group": f"group {number // 4}"}
    place = {"culture": CULTURES[number % 3], "language": LANGUAGES[number % 4]}
    return make_item(**asked | known | place | changes)


def chosen(items: Iterable[Item], seed: int = 0, **keys: Any) -> list[Item]:
    return list(choose(items, data_section(source="jsonl", **keys), frozenset(), seed))


ITEMS = [sized(i) for i in range(24)]


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
    other = sized(99, culture=None, language="xx", group="other")
    assert chosen([*ITEMS, other], **{key: values}) == [ITEMS[i] for i in sorted(kept)]
    assert chosen([*ITEMS, other]) == [*ITEMS, other]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"languages": ["es", "en"]}, "data.languages: no items of 'en'; there are items of: es, fr, th, zh, zh-Hant"),
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
    items = [sized(100 * n + i, group=name) for n, (name, size) in enumerate(sizes.items()) for i in range(size)]
    assert {item.group for item in chosen(items, max_groups=2)} == {"b", "e"}
    three = {item.group for item in chosen(items, max_groups=3)}
    assert three in ({"b", "e", "c"}, {"b", "e", "d"})
    assert {item.group for item in chosen(reversed(items), max_groups=3)} == three
    assert chosen(items, max_groups=5) == items
    # One whole set outweighs any number of single items.
    sets = [sized(0, 2, best=i, id=f"flip {i}", group="few", culture=c) for i, c in enumerate(("CL", "TH"))]
    many = [sized(i, group="many") for i in range(1, 9)]
    assert chosen([*many, *sets], max_groups=1) == sets


@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 7), st.integers(0, 99))
def test_num_responses_keeps_the_best_and_the_order(size: int, count: int, best: int, seed: int) -> None:
    item = sized(1, size, best=best % size, origins=[f"o{i}" for i in range(size)])
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
    items = [sized(i, best=0) for i in range(600)]
    drawn = Counter(item.responses[1][0] for item in chosen(items, num_responses=2))
    assert all(150 < drawn[letter] < 250 for letter in "bcd")
    assert chosen(items, num_responses=2) == chosen(items, num_responses=2) != chosen(items, 1, num_responses=2)
    items = [sized(0), sized(1, 2), sized(2, 3), sized(3, 5)]
    with pytest.warns(DataWarning, match=r"^data\.num_responses=4: left out 2 items with fewer, such as 'item 1'$"):
        assert [item.id for item in chosen(items, num_responses=4)] == ["item 0", "item 3"]


def test_as_pairs_gives_the_best_with_each_other_response() -> None:
    known = {"responses": ["a", "b", "c", "d"], "origins": ["TH", "CL", "JP", "EG"], "best": 2}
    pairs = chosen([sized(7, **known), sized(8, 2)], as_pairs=True)
    assert [(pair.id, pair.responses, pair.best, pair.origins) for pair in pairs[:3]] == [
        ("item 7/pair-0", ("a", "c"), 1, ("TH", "JP")),
        ("item 7/pair-1", ("b", "c"), 1, ("CL", "JP")),
        ("item 7/pair-3", ("c", "d"), 0, ("JP", "EG")),
    ]
    assert {pair.group for pair in pairs[:3]} == {"group 1"}  # so that no split divides them
    assert pairs[3] == sized(8, 2)
    drawn = chosen([sized(i) for i in range(9)], num_responses=3, as_pairs=True)
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


@pytest.mark.parametrize("source", ["culture_cards", "opinion_cards", "jsonl", "carb"])
def test_selection_keys_apply_to_every_source(tmp_path: Path, source: str) -> None:
    words = [f"data={source}", *(["data.sets_per_group=2"] if source == "culture_cards" else [])]
    if source == "jsonl":
        jsonl.write(read(data_section(languages=["en", "own"], sets_per_group=2)), tmp_path / "rows.jsonl")
    elif not source.endswith("_cards"):
        write(tmp_path / "rows.jsonl", [carb_row(number) for number in range(40)])
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

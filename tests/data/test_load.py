"""A data configuration -> items -> a split that cannot leak."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any, Literal

import pytest
from data.sections import data_section
from data.tables import write
from items import make_item

from think_as_locals.config.checks import load_data_config, load_recipe
from think_as_locals.config.schema import DataSection, RunConfig
from think_as_locals.data import load, read
from think_as_locals.data.load import Candidates, TrainingData, check_leaks, load_training_data, read_candidates
from think_as_locals.data.sources import jsonl
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.types import DataError, DataWarning, Item

GROUPS = [
    *("hot_drink", "table_taboo", "idiom_crowded", "lucky_charm", "egg_dish", "gift_taboo"),
    *("typical_soup", "work_custom", "street_snack", "birthday_custom", "house_taboo", "proverb_patience"),
]


def an_item(number: int, **changes: Any) -> Item:
    asked = {"id": f"item {number}", "prompt": f"Question {number}?", "responses": (f"yes {number}", f"no {number}")}
    return make_item(**asked | {"domain": ("food", "work")[number % 2], "group": f"group {number // 4}"} | changes)


def written(folder: Path, items: Iterable[Item], **changes: Any) -> DataSection:
    path = folder / "items.jsonl"
    jsonl.write(items, path)
    return data_section(source="jsonl", path=str(path), **changes)


def keys(items: Iterable[Item], split: str) -> set[Any]:
    """What the items of one side of a split have alone."""
    if split == "group":
        return {item.group for item in items} | {item.prompt for item in items}
    return {(item.group, frozenset(texts)) for item in items for texts in (item.origins, item.responses)}


@pytest.mark.parametrize(
    ("split", "languages"),
    [
        *(("group", languages) for languages in (["en"], ["own"], ["en", "own"], ["en", "de", "th"])),
        *(("pairing", languages) for languages in (["en"], ["en", "de", "th"])),
    ],
)
@pytest.mark.parametrize(("test_share", "validation_share"), [(0.02, 0.02), (0.2, 0.1), (0.5, 0.1)])
def test_every_item_is_on_one_side_and_no_question_or_set_of_responses_on_two(
    split: str, languages: list[str], test_share: float, validation_share: float
) -> None:
    shares = {"test_share": test_share, "validation_share": validation_share}
    sets = 5 if split == "group" else 20  # enough for every fact to be in several
    spec = data_section(split=split, groups=GROUPS, languages=languages, sets_per_group=sets, **shares)
    splits = load(spec)
    sides = (splits.train, splits.validation, splits.test)
    assert sorted(item.id for side in sides for item in side) == sorted(item.id for item in read(spec))
    assert all(sides)
    for one, other in combinations(sides, 2):
        assert not keys(one, split) & keys(other, split)
    # Validation is taken from what would be trained on: figures on the test side stay comparable.
    two = load(spec.model_copy(update={"validation_share": None}))
    assert (two.validation, two.test) == ((), splits.test)
    if split == "pairing":
        assert {item.group for item in two.test} <= {item.group for item in two.train}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": ["hot_drink"]}, r"20 items.*data\.split=group.*data\.test_share=0\.2"),
        ({"split": "pairing", "languages": ["en", "own"]}, "memory alone"),
        ({"source": "blend"}, r"data=blend reads files: set data\.path"),
        ({"source": "jsonl"}, r"data=jsonl reads files: set data\.path"),
    ],
)
def test_an_empty_side_a_pairing_known_by_heart_and_a_missing_path_are_errors(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(data_section(**changes))


def alike(count: int) -> list[Item]:
    """The same two texts twice, once as one culture's answer and once as another's; each text in several pairs."""
    twins, others, items = [("KR", "KP"), ("US", "GB"), ("ES", "MX"), ("DE", "AT"), ("JO", "EG")], ("TH", "VN"), []
    for i in range(count):
        pair = i // 2
        text, other = pair % 5, pair // 5 % 2
        culture = twins[text][i % 2]
        known = {"culture": culture, "origins": (culture, others[other]), "group": f"g{pair // 10}", "domain": "food"}
        items.append(an_item(i, responses=(f"kimchi {pair // 10}.{text}", f"rice {other}"), **known))
    return items


def mirrored(count: int) -> list[Item]:
    """In each pair of items the same two texts, in another order, without origins; each text in several pairs."""
    pairs = [(f"a{i % 10}", f"b{i // 10}") for i in range(count // 2)]
    texts = [both for a, b in pairs for both in ((a, b), (b, a))]
    return [an_item(i, responses=both, group="g", domain="d") for i, both in enumerate(texts)]


@pytest.mark.parametrize(("items", "share", "size"), [(alike(100), 0.3, 30), (mirrored(100), 0.2, 20)])
def test_a_pairing_is_its_set_of_texts_whoever_gives_them_in_whatever_order(
    tmp_path: Path, items: list[Item], share: float, size: int
) -> None:
    both = load(written(tmp_path, items, split="pairing", test_share=share))
    texts = [{frozenset(item.responses) for item in side} for side in (both.train, both.test)]
    assert not texts[0] & texts[1]
    assert len(both.test) == size


def test_where_no_fact_is_in_two_items_there_is_no_pairing_to_test(tmp_path: Path) -> None:
    spec = written(tmp_path, map(an_item, range(40)), split="pairing")
    with pytest.raises(DataError, match=r"0 to test on .*pairing holds out facts that other items show in other comb"):
        load(spec)


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


@pytest.mark.parametrize(
    ("items", "split"),
    [([an_item(i) for i in range(120)], "group"), (alike(120), "group"), (alike(120), "pairing")],
    ids=["apart", "alike", "pairing"],
)
def test_the_split_does_not_depend_on_the_seed_or_the_order_of_rows(
    tmp_path: Path, items: list[Item], split: Literal["group", "pairing"]
) -> None:
    (tmp_path / "turned").mkdir()
    spec = written(tmp_path, items, split=split, test_share=0.4)
    turned = written(tmp_path / "turned", reversed(items), split=split, test_share=0.4)
    assert load(spec, 0) == load(spec, 1)
    assert {item.id for item in load(spec).test} == {item.id for item in load(turned).test}


def test_all_items_of_a_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = written(tmp_path, map(an_item, range(40))).model_copy(update={"path": "~/items.jsonl"})
    assert [item.id for item in read(at_home)] == [f"item {i}" for i in range(40)]


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"jsonl: no rows: it is empty"):
        load(written(tmp_path, []))


# --- candidates ---


def candidates(**changes: Any) -> dict[str, Any]:
    row = {"id": "1", "prompt": "?", "culture": "TH", "language": "th", "candidates": ["a", "b", "a"]}
    return row | changes


def test_rows_are_read_with_any_number_of_candidates(tmp_path: Path) -> None:
    many = {"id": "2", "culture": None, "candidates": [str(i) for i in range(40)], "qualities": [0] * 40}
    rows = [candidates(qualities=[1, 2.5, -3]), candidates(**many)]
    first, second = read_candidates(write(tmp_path / "c.jsonl", rows))
    assert first == Candidates(
        id="1", prompt="?", culture="TH", language="th", texts=("a", "b", "a"), qualities=(1.0, 2.5, -3.0)
    )
    assert (second.culture, len(second.texts)) == (None, 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": []}, "at least one candidate"),
        ({"candidates": ["a", " "]}, "candidates[1] must be a non-blank string"),
        ({"candidates": 3}, "candidates must be a list"),
        ({"prompt": ""}, "prompt must be a non-blank string"),
        ({"culture": "Atlantis"}, "culture 'Atlantis'"),
        ({"language": "Klingonish"}, "language 'Klingonish'"),
        ({"quality": [1]}, "unknown quality; fields: id"),
        ({"qualities": [1, 2]}, "a quality for each of 3 candidates, got 2"),
        *(({"qualities": [1, bad, 3]}, "qualities must be a list of finite numbers") for bad in (True, 10**400, nan)),
        ({"id": "1"}, "id '1' is already in an earlier row"),
    ],
)
def test_a_fault_names_file_and_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = write(tmp_path / "c.jsonl", [candidates(), candidates(id="2") | change])
    with pytest.raises(DataError) as error:
        read_candidates(file)
    assert str(error.value).startswith(f"{file}:2: ")
    assert message in str(error.value)


def test_a_message_names_ten_faults(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", [candidates(id=str(i), prompt="") for i in range(13)])
    with pytest.raises(DataError, match="and 3 more") as error:
        read_candidates(file)
    assert len(str(error.value).splitlines()) == 11


@pytest.mark.parametrize(
    ("rows", "message"),
    [([candidates(), candidates(id="2", qualities=[1, 2, 3])], r":2 has qualities and .*:1 has none"), ([], "no rows")],
)
def test_qualities_for_some_and_no_rows_at_all_are_errors(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_candidates(write(tmp_path / "c.jsonl", rows))


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


def test_a_set_that_holds_training_items_is_refused_or_warned_of(two_sets: tuple[RunConfig, TrainingData]) -> None:
    config, data = two_sets
    assert {name: len(each.items) for name, each in data.sets.items()} == {"test": 8, "every": 40, "same": 8}
    with pytest.raises(DataError, match=r"^every: 32 items are training items too[\s\S]*eval\.leaks=report"):
        check_leaks(config, data)
    reported = config.model_copy(update={"eval": config.eval.model_copy(update={"leaks": "report"})})
    with pytest.warns(DataWarning, match=r"^every: 32 items are training items too \(32 by id\)") as warned:
        check_leaks(reported, data)
    assert "same" not in str(warned[0].message)


def test_only_a_runs_own_items_may_share_questions_with_its_training_items(
    two_sets: tuple[RunConfig, TrainingData],
) -> None:
    config, data = two_sets
    question = [dataclasses.replace(item, id=f"again-{item.id}", culture="JP") for item in data.train[:3]]
    asked = dataclasses.replace(data.sets["same"], split="pairing", items=tuple(question))
    with warnings.catch_warnings(action="error"):
        check_leaks(config, dataclasses.replace(data, sets={"test": asked}))
    with pytest.raises(DataError, match=r"^same: 3 items are training items too"):
        check_leaks(config, dataclasses.replace(data, sets={"same": asked}))


def test_rows_of_another_source_are_recognised_where_they_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("prompt,chosen,rejected\n?,Rice.,Bread.\n")
    config = load_data_config(["data=jsonl", f"data.path={path}"])
    with pytest.raises(DataError, match=r"missing best(?s:.*)\nThe rows look like data=pairs, got data=jsonl$"):
        read(config.data)
    path.write_text("prompt,chosen,rejected\n?,Rice.,Rice.\n")
    with pytest.raises(DataError, match=r"numbers 0 and 1 are the same text$"):
        read(load_data_config(["data=pairs", f"data.path={path}"]).data)

"""Loading: a data configuration gives items and leak-free splits."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from math import nan
from pathlib import Path
from typing import Any

import pytest
from data.sections import data_section
from data.tables import write
from items import make_item

from think_as_locals.config.checks import load_data_config, load_recipe
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import DataSection
from think_as_locals.data import load, read
from think_as_locals.data.load import (
    Candidates,
    TrainingData,
    check_leaks,
    join_groups,
    load_training_data,
    read_candidates,
)
from think_as_locals.data.sources import jsonl
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
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
    # Regions of BLEnD, languages of CARB, free names: `tal sample` writes those of its questions.
    cultures = ["TH", "ID-JB", "Arabic-speaking countries", "Quebec", None]
    rows = [candidates(id=str(number), culture=culture) for number, culture in enumerate([*cultures, "Thai"])]
    found = read_candidates(write(tmp_path / "c.jsonl", rows))
    assert [each.culture for each in found] == [*cultures, "TH"]


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


def test_rows_that_say_little_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("prompt,chosen,rejected\n?,Rice.,Bread.\n")
    config = load_data_config(["data=jsonl", f"data.path={path}"])
    with pytest.raises(DataError, match=r"best: Field required(?s:.*)\nThe rows look like data=rows, got data=jsonl$"):
        read(config.data)
    path.write_text("prompt,chosen,rejected\n?,Rice.,Rice.\n")
    with pytest.raises(DataError, match=r"two of them are the same text$"):
        read(load_data_config(["data=rows", f"data.path={path}"]).data)
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

"""Edits read from a file: what a row changes, and how invalid rows are reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from data.tables import write
from items import make_item

from think_as_locals.data.edits import read_edits
from think_as_locals.types import DataError, Item

MEALS: dict[str, Any] = {"responses": ("rice", "bread", "soup"), "best": 1, "origins": ("JP", "FR", "US")}
ITEMS = [make_item(id=f"jp-{n}", prompt=f"What do people in Japan eat, {n}?", culture="JP", **MEALS) for n in range(2)]


def read(folder: Path, *rows: dict[str, Any], items: list[Item] = ITEMS) -> Any:
    return read_edits(write(folder / "edits.jsonl", list(rows)), items)


def test_edit_changes_only_the_fields_of_its_row(tmp_path: Path) -> None:
    responses, asked = ["ご飯", "パン", "スープ"], "In Japan, what is eaten, 0?"
    found = read(
        tmp_path,
        {"item": "jp-1", "probe": "RC", "prompt": "What do people eat, 1?", "provenance": {"model": "m"}},
        {"item": "jp-0", "probe": "CL", "responses": responses, "language": "Japanese"},
        {"item": "jp-0", "probe": "CC", "responses": ["rice", "pita", "soup"]},
        {"item": "jp-0", "probe": "RP", "prompt": asked, "responses": ["rice.", "a bread", "s"]},
    )
    zero, one = ITEMS
    unlabelled = dataclasses.replace(one, id="jp-1#RC", prompt="What do people eat, 1?", culture=None)
    assert found["RC"] == [(one, unlabelled, "en")]
    # The prompt stays, and so does its language, in which a judge is to write its rubric.
    assert found["CL"] == [(zero, dataclasses.replace(zero, id="jp-0#CL", responses=tuple(responses)), "ja")]
    cc = dataclasses.replace(zero, id="jp-0#CC", responses=("rice", "pita", "soup"), origins=())
    assert found["CC"] == [(zero, cc, "en")]
    assert [(after.prompt, after.best, after.culture) for _, after, _ in found["RP"]] == [(asked, 1, "JP")]


ROW = {"item": "jp-0", "probe": "RC", "prompt": "What do people eat?"}


def test_row_with_its_own_item_is_kept_for_any_evaluated_items(tmp_path: Path) -> None:
    own = dataclasses.replace(ITEMS[0], id="elsewhere")
    found = read(tmp_path, ROW | {"item": dataclasses.asdict(own)}, ROW, ROW | {"item": "jp-1"})
    assert [pair.before.id for pair in found["RC"]] == ["elsewhere", "jp-0", "jp-1"]
    assert found["RC"][0][0] == own


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"item": "jp-1"}, r"item 'jp-1' has a RC edit already, in .*edits\.jsonl:1"),
        ({"item": "jp-9"}, r"item 'jp-9' is not among the 2 items; did you mean 'jp-[01]'\?"),
        ({"probe": "XX"}, "probe: "),
        ({"prompt": None}, "prompt and responses are the item's: expected at least one that differs"),
        ({"prompt": ITEMS[0].prompt}, "prompt and responses are the item's: expected at least one that differs"),
        ({"responses": ["a", "b"]}, "expected the item's 3 responses in its order, got 2"),
        ({"responses": ["a", "b", "b"]}, ".*responses must be distinct"),
        ({"responses": ["a", " ", "b"]}, r"responses\.1: "),
        ({"probe": "CL"}, "a CL edit changes the language of the responses: it needs responses"),
        ({"probe": "CL", "responses": ["a", "b", "c"], "language": "Xish"}, "language: "),
        ({"text": "x"}, "text: "),
        ({"item": {"id": "x"}}, "prompt: Field required"),
        ({"item": 3}, r"item\."),
    ],
)
def test_invalid_row_error_names_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^[^\n]*edits\.jsonl:2: {message}"):
        read(tmp_path, ROW | {"item": "jp-1"}, ROW | row)


def test_long_errors_are_shortened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"and 2 more"):
        read(tmp_path, *[ROW | {"item": f"no-{number}"} for number in range(12)])

"""BLEnD: what becomes of every question of every region."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from think_as_locals import cli
from think_as_locals.data import blend, jsonl
from think_as_locals.data.importers import recognise
from think_as_locals.data.importers.blend import outcomes

HOW: dict[str, Any] = {"languages": ["en"], "num_responses": 2, "sets_per_group": None, "seed": 0}


def row(*answers: tuple[str, int], **changes: Any) -> dict[str, Any]:
    votes = [{"answers": [text], "en_answers": [text], "count": count} for text, count in answers]
    return {"question": "?", "en_question": "What do people eat?", "annotations": votes, "idks": {}} | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    regions = {
        "UK": {"q1": row(("toast", 4)), "q2": row(("tea", 3))},
        "China": {"q1": row(("porridge", 5)), "q2": row(("tea", 5))},
        "Mexico": {"q1": row(("tortilla", 2), ("beans", 2)), "q2": row()},
        "Greece": {"q1": row(("greek salad", 5)), "q2": "no object"},
        "Spain": {"q1": row(("bread", 4), question=" ", en_question=" ")},
    }
    (tmp_path / "annotations").mkdir()
    for region, rows in regions.items():
        (tmp_path / "annotations" / f"{region}_data.json").write_text(json.dumps(rows))
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions" / "UK_questions.csv").write_text("ID,Topic\nq1,Food\nq2,Drink\n")
    return tmp_path


def test_every_row_is_asked_or_says_why_not(folder: Path) -> None:
    found = {
        (Path(outcome.row.file).name.removesuffix("_data.json"), outcome.row.number): [
            str(fault.defect) for fault in outcome.faults
        ]
        for outcome in outcomes(folder, **HOW)
    }
    assert found == {
        ("UK", 1): [],
        ("China", 1): [],
        ("Mexico", 1): ["no_majority"],
        ("Greece", 1): ["names_culture"],
        ("Spain", 1): ["empty_prompt"],
        ("UK", 2): ["no_rivals"],
        ("China", 2): ["no_rivals"],
        ("Mexico", 2): ["no_majority"],
        ("Greece", 2): ["wrong_type"],
    }


@pytest.mark.parametrize(
    "changes",
    [{"annotations": [{"en_answers": "toast", "count": 4}]}, {"en_question": "half \ud83d"}],
    ids=["a text for a list", "half a surrogate pair"],
)
def test_a_question_that_cannot_be_read_is_set_aside_and_the_others_stay(folder: Path, changes: dict[str, Any]) -> None:
    file = folder / "annotations" / "Mexico_data.json"
    file.write_text(json.dumps({"q1": row(("tortilla", 4)), "q2": row(("mate", 4)) | changes}))
    found = [outcome for outcome in outcomes(folder, **HOW) if Path(outcome.row.file) == file]
    assert sorted((o.row.number, len(o.items) > 0, *(str(f.defect) for f in o.faults)) for o in found) == [
        (1, True),
        (2, False, "wrong_type"),
    ]


def test_what_is_built_is_what_training_reads_and_the_rest_is_set_aside(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "items.jsonl"
    words = ["data", "build", "data=blend", f"data.path={folder}", "data.num_responses=2", "data.languages=[en]"]
    monkeypatch.setattr("sys.argv", ["tal", *words, "data.max_groups=1", f"out={out}"])
    cli.main()
    (folder / "annotations" / "Greece_data.json").unlink()  # the one row with an error, at which training stops
    ids = {item.id for item in blend.read(folder, **HOW | {"sets_per_group": 30})}
    assert {item.id for item in jsonl.read(out)} == ids
    assert "9 rows = 2 imported (4 items) + 7 set aside" in capsys.readouterr().out
    assert len((tmp_path / "items.quarantine.jsonl").read_text().splitlines()) == 7


def test_the_items_are_those_that_training_reads(folder: Path) -> None:
    (folder / "annotations" / "Greece_data.json").unlink()
    items = [item for outcome in outcomes(folder, **HOW) for item in outcome.items]
    assert sorted(items, key=lambda item: item.id) == sorted(blend.read(folder, **HOW), key=lambda item: item.id)
    assert {item.culture for item in items} == {"GB", "CN"}


def test_a_folder_of_blend_is_recognised(folder: Path) -> None:
    assert recognise(str(folder)) == "blend"

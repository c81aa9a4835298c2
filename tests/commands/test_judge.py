"""`tal judge` with small models: items of a file, or one from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models.tiny import ITEMS, write_classifier, write_language_model

from think_as_locals import Judge, ScalarRM, present
from think_as_locals.cli import main
from think_as_locals.data import jsonl

ONE = ["--prompt", "How do people greet?", "--response", "With a bow.", "--response", "With two kisses."]
Tal = Callable[..., str]


@pytest.fixture
def tal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tal:
    """Runs `tal judge` in this process; returns what it printed."""

    def run(*words: str, columns: int = 60) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["tal", "judge", *words])
        main()
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A judge that writes nonsense, and little of it."""
    folder = tmp_path_factory.mktemp("judge")
    path = write_language_model(folder, 0, max_position_embeddings=2048)
    (folder / "tal_judge.json").write_text(json.dumps({"max_completion_length": 8, "dtype": "float32"}))
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_classifier(tmp_path_factory.mktemp("classifier"))


def records(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


def test_the_items_of_a_file_are_judged_as_by_the_judge_itself(tal: Tal, judge: str, tmp_path: Path) -> None:
    jsonl.write(ITEMS, tmp_path / "items.jsonl")
    told = records(tal(judge, str(tmp_path / "items.jsonl"), "--json"))
    assert [record["id"] for record in told] == [item.id for item in ITEMS]
    for record, item, judgement in zip(told, ITEMS, Judge.load(judge).judge(ITEMS), strict=True):
        assert record["completion"] == judgement.text
        assert record["issues"] == list(judgement.issues)
        assert [item.responses[i] for i in record["shown"]] == list(present(item).responses)


def test_one_item_of_the_command_line_is_shown_to_a_person(tal: Tal, judge: str) -> None:
    said = tal(judge, *ONE, "--culture", "TH", "--language", "en")
    lines = [line.strip() for line in said.splitlines()]
    assert lines[1:3] == ["How do people greet?", "Thailand"]
    assert "No verdict" in lines
    assert any(line.startswith("- finished: the completion has to end by itself") for line in lines)


def test_a_classifier_is_asked_for_scores(tal: Tal, classifier: str, tmp_path: Path) -> None:
    jsonl.write(ITEMS, tmp_path / "items.jsonl")
    told = records(tal(classifier, str(tmp_path / "items.jsonl"), "--json"))
    expected = ScalarRM.load(classifier).score(ITEMS)
    assert [record["scores"] for record in told] == [pytest.approx(scores, abs=1e-5) for scores in expected]
    assert [record["verdict"] for record in told] == [scores.index(max(scores)) for scores in expected]
    assert "Highest score: your response " in tal(classifier, *ONE)


def test_rows_of_somebody_who_knows_no_more_than_what_was_asked_and_answered(
    tal: Tal, judge: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": prompt, "responses": ["A bow.", "A wai."]} for prompt in ("Greeting?", "Farewell?")]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[1] | {"culture": "JP"})))
    told = tal(judge, str(path), "--culture", "TH", columns=200)
    assert [line for line in told.splitlines() if line in ("Thailand", "Japan")] == ["Thailand", "Japan"]
    assert [record["id"] for record in records(tal(judge, str(path), "--culture", "TH", "--json"))] == [
        "mine.jsonl-1",
        "mine.jsonl-2",
    ]
    with pytest.raises(SystemExit, match="2"):
        tal(judge, str(path))
    assert "mine.jsonl:1: missing culture; fields: " in capsys.readouterr().err
    path.write_text("\n")
    with pytest.raises(SystemExit, match="2"):
        tal(judge, str(path))
    assert "mine.jsonl: got no items" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a JSONL file of items, or --prompt TEXT with --response TEXT"),
        (["items.jsonl", *ONE], "give a JSONL file of items, or --prompt TEXT with --response TEXT"),
        (ONE[:4], "expected 2 to 8 responses, got 1"),
        (ONE[2:], "prompt must be a non-blank string"),
        (["no-such-items.jsonl"], "no-such-items.jsonl"),
    ],
)
def test_what_cannot_be_judged_is_said_before_a_model_loads(
    tal: Tal, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tal("no-such-model", *words)
    assert said in capsys.readouterr().err


def test_a_file_without_items_is_said(tal: Tal, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text("\n")
    with pytest.raises(SystemExit, match="2"):
        tal("no-such-model", str(tmp_path / "items.jsonl"))
    assert "items.jsonl: got no items" in capsys.readouterr().err


def test_a_model_that_is_nowhere_is_said_in_one_line(
    tal: Tal, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tal(str(tmp_path), *ONE)
    assert capsys.readouterr().err == f"tal: model: {tmp_path} is a directory without config.json\n"
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").touch()
    for model, said in {str(tmp_path): f"a run's model is {tmp_path}/model", "runs/GONE/model": "no such dir"}.items():
        with pytest.raises(SystemExit, match="2"):
            tal(model, *ONE)
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_trained_judge_names_the_callers_own_response(tal: Tal, small_run: Path, tmp_path: Path) -> None:
    from think_as_locals.config import load_recipe
    from think_as_locals.data import load

    config = load_recipe("recipes/quickstart.yaml", ["data.groups=[gift_taboo]", "data.sets_per_group=4"])
    items = load(config.data, config.seed).train[:8]
    jsonl.write(items, tmp_path / "items.jsonl")
    told = records(tal(str(small_run / "model"), str(tmp_path / "items.jsonl"), "--json"))
    read = [(record, item) for record, item in zip(told, items, strict=True) if record["verdict"] is not None]
    assert read
    for record, item in read:
        label = record["completion"].rpartition("<verdict>")[2][0]
        assert present(item).responses["ABCD".index(label)] == item.responses[record["verdict"]]
        assert sum(criterion["weight"] for criterion in record["rubric"]) == 100

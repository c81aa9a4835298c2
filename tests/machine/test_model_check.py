"""`tal doctor --model`: what it says of the formats in which a model answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Tal
from items import RUBRIC, make_item
from reward_models.scripted import Scripted, shown_in
from rich.console import Console

from think_as_locals.engines import Messages
from think_as_locals.judging import write
from think_as_locals.machine import model_check
from think_as_locals.machine.model_check import format_findings, judge_with, query_model
from think_as_locals.reward_models.judge import SETTINGS_FILE, Judge, JudgeSettings
from think_as_locals.runtime.output import shorten_repeats


def judge_with_format_errors(messages: Messages) -> str:
    """The right verdict, in a form that depends on the question."""
    text = write(RUBRIC, "Weighed.", shown_in(messages).index("yes"))
    number = messages[-1]["content"].partition("Question ")[2][0]
    return {"0": text, "1": f"Well.\n{text}", "2": text.replace("<verdict>", "<verdict> "), "3": "I cannot say."}[
        number
    ]


def test_check_format_counts_broken_rules() -> None:
    items = [make_item(id=str(i), prompt=f"Question {i}?", responses=("no", "yes"), best=1) for i in range(4)]
    judge = Judge(engine=Scripted(judge_with_format_errors), settings=JudgeSettings(prompt="listwise"))
    scored = judge_with(judge, "compact", items, Console(quiet=True))
    found = [finding.found for finding in format_findings("compact", scored)]
    assert found[:2] == [
        "of 4 judgements with prompt compact, 2 are in the format",
        "1 have no verdict, 3 have the right one",
    ]
    assert "  1 of 4 break verdict_label: the verdict has to be one of the labels on offer" in found


def test_doctor_checks_the_format_of_a_trained_judge(small_run: Path, tal: Tal) -> None:
    status, printed, _ = tal("doctor", "--model", str(small_run / "model"))
    assert status == 0
    assert "of 20 judgements with prompt compact" in printed
    assert "knows only questions like those it was trained on" in printed
    asked = f"tal judge {small_run / 'model'} {small_run / 'examples.jsonl'}"
    assert asked.replace(" ", "") in "".join(printed.split())
    assert "it wrote, for example: " in printed


def test_a_model_without_a_format_is_asked_with_several_prompts_and_told_of_the_cold_start(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The small judge without its settings knows `compact` alone; it stands for a model that is no judge yet."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(model_check, "_MAX_TOKENS", model_check._MAX_TOKENS // 8)  # it never stops
    model = tmp_path / "model"
    shutil.copytree(small_run / "model", model, ignore=shutil.ignore_patterns(SETTINGS_FILE))
    found = query_model(str(model), "transformers", None, Console(stderr=True))
    texts = [finding.found for finding in found]
    asked = [text.partition("prompt ")[2].partition(",")[0] for text in texts if text.startswith("of 4 judgements")]
    assert sorted(asked) == ["listwise", "rewardbench2", "rm_r1"]
    assert f"tal run pretrained model.path={model}" in texts[-1]
    assert texts[-1].startswith(f"prompt={asked[0]} does best")
    assert "prompt listwise: 4 judgements of up to 64 tokens" in capsys.readouterr().err


def test_repetition_is_shortened() -> None:
    assert shorten_repeats("Verdict " + "A: " * 700 + "end") == "Verdict A:[700 times] end"
    assert shorten_repeats("a a a b") == "a a a b"

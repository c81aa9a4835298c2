"""What `tal doctor --model` says of a model's judgements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from items import RUBRIC, make_item
from reward_models.scripted import Scripted, shown_in

from think_as_locals import cli
from think_as_locals.engines import Messages
from think_as_locals.judging import write
from think_as_locals.machine.format_check import check_format
from think_as_locals.reward_models.judge import Judge, JudgeSettings


def slips(messages: Messages) -> str:
    """The right verdict, in a form that depends on the question."""
    text = write(RUBRIC, "Weighed.", shown_in(messages).index("yes"))
    number = messages[-1]["content"].partition("Question ")[2][0]
    return {"0": text, "1": f"Well.\n{text}", "2": text.replace("<verdict>", "<verdict> "), "3": "I cannot say."}[
        number
    ]


def test_rules_are_counted_beside_both_figures() -> None:
    items = [make_item(id=str(i), prompt=f"Question {i}?", responses=("no", "yes"), best=1) for i in range(4)]
    judge = Judge(engine=Scripted(slips), settings=JudgeSettings(prompt="compact"))
    found = [finding.found for finding in check_format(judge, items)]
    assert found[:2] == [
        "1 of 4 judgements keep the format of prompt compact, 3 have a verdict tag",
        "right: 1 strictly, 3 by the last verdict tag, of 4",
    ]
    assert "  2 of 4 break order: rubric, analysis, verdict, with nothing but white space around them" in found
    assert "  2 of 4 break verdict_label: the verdict has to be one of the labels on offer" in found
    assert "  1 of 4 break analysis_once: there has to be one <analysis>...</analysis>" in found


def test_a_trained_judge_is_asked_by_the_command(
    small_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["tal", "doctor", "--model", str(small_run / "model")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr().out
    assert not ended.value.code
    assert "of 20 judgements keep the format of prompt compact" in printed
    assert "by the last verdict tag, of 20" in printed

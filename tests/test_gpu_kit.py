"""The kit for GPUs with toy models: every check runs, and one that fails costs its own rows only."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from conftest import launch
from gpu import truth
from gpu.checks import CHECKS, Claim, Scale

LEAST = Claim("speed", "it is fast", 2.0, "times", at_least=True, on_gpu=True)
MOST = Claim("error", "it is exact", 0.5)
CHECK = replace(CHECKS[0], claims=(LEAST, MOST))


EACH = ["machine", "attention", "flex", "log_probs", "update_1k", "doctor_memory", "weights", "ddp", "scpo_llama"]
"""A check for each function that needs no vLLM."""


@pytest.mark.slow
def test_checks_run_with_toy_models(tmp_path: Path, warm_python: str) -> None:
    out, only = tmp_path / "truth.json", [*EACH, "fsdp2", "quick_start"]
    words = ["tests/gpu/truth.py", "--only", *only, "--out", str(out), "--work", str(tmp_path / "work")]
    done = launch(warm_python, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    rows = found["rows"]
    assert found["toy"]
    assert [row["claim"] for row in rows] == [c.text for check in CHECKS if check.name in only for c in check.claims]
    assert {row["verdict"] for row in rows} == {"HOLDS", "NOT RUN"}
    assert {row["why"] for row in rows if row["verdict"] == "NOT RUN"} == {truth.ON_TOYS, "needs a GPU"}
    assert all(row["measured"].startswith("toy: ") for row in rows if row["why"] != "needs a GPU")


@pytest.mark.parametrize("module", sorted({check.module for check in CHECKS}))
def test_every_check_is_there(module: str) -> None:
    named = {check.name for check in CHECKS if check.module == module}
    assert named == import_module(f"gpu.{module}").RUN.keys()


def test_a_check_that_hangs_is_killed_at_its_deadline_and_the_others_go_on(tmp_path: Path) -> None:
    scale = Scale(toy=True, folder=tmp_path)
    ended = truth.run_check(CHECK, scale, 0.1)
    assert ended.seconds < 10
    assert {(row.verdict, row.why) for row in truth.rows(CHECK, ended, scale)} == {
        ("NOT RUN", "was not done after 0 s")
    }


def test_what_was_measured_before_an_error_counts() -> None:
    ended = truth.Ended([("error", 0.6, "of all")], "OutOfMemoryError: 79 GB", 3.0)
    lost, kept = truth.rows(CHECK, ended, Scale(toy=False, folder=Path()))
    assert (lost.verdict, lost.why, lost.failed) == ("NOT RUN", "OutOfMemoryError: 79 GB", True)
    assert (kept.verdict, kept.measured, kept.value, kept.failed) == ("REFUTED", "0.6 (of all)", 0.6, False)


def test_limits_are_of_one_side_and_a_number_that_is_none_refutes() -> None:
    assert [LEAST.holds(value) for value in (2.0, 1.9, float("nan"))] == [True, False, False]
    assert [MOST.holds(value) for value in (0.5, 0.6, float("nan"))] == [True, False, False]
    assert (LEAST.bound, MOST.bound) == (">= 2 times", "<= 0.5")
    reports = [("speed", float("nan"), ""), ("error", 0.1, "")]
    row = truth.rows(CHECK, truth.Ended(reports, "", 1.0), Scale(toy=False, folder=Path()))[0]
    assert (row.verdict, row.value, row.measured) == ("REFUTED", None, "nan times")


def test_toy_models_do_not_decide_what_is_of_a_gpu() -> None:
    reports = [("speed", 0.1, ""), ("error", 0.1, "")]
    rows = truth.rows(CHECK, truth.Ended(reports, "", 1.0), Scale(toy=True, folder=Path()))
    assert [(row.verdict, row.measured, row.why) for row in rows] == [
        ("NOT RUN", "toy: 0.1 times", truth.ON_TOYS),
        ("HOLDS", "toy: 0.1", ""),
    ]


def test_a_spent_budget_starts_no_further_check(tmp_path: Path) -> None:
    out = tmp_path / "truth.json"
    words = ["tests/gpu/truth.py", "--only", "machine", "flex", "--budget", "0", "--out", str(out)]
    done = launch(sys.executable, *words)
    assert done.returncode == 0, done.stderr
    assert {row["why"] for row in json.loads(out.read_text())["rows"]} == {"the budget of 0 s is spent"}

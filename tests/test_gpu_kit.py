"""The GPU check kit with toy models: every check runs, and a failing check affects only its own rows."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from conftest import ROOT, launch
from gpu import truth
from gpu.checks import CHECKS, Claim, Scale

AT_LEAST_CLAIM = Claim("speed", "it is fast", 2.0, "times", at_least=True, on_gpu=True)
AT_MOST_CLAIM = Claim("error", "it is exact", 0.5)
CHECK = replace(CHECKS[0], claims=(AT_LEAST_CLAIM, AT_MOST_CLAIM))


CHECKS_WITHOUT_VLLM = ["machine", "attention", "log_probs", "update_1k", "weights", "ddp", "scpo_llama"]
"""A check for each function that needs no vLLM."""


@pytest.mark.slow
@pytest.mark.long
def test_checks_run_with_toy_models(tmp_path: Path, warm_python: str) -> None:
    out, only = tmp_path / "truth.json", [*CHECKS_WITHOUT_VLLM, "fsdp2"]
    words = ["tests/gpu/truth.py", "--only", *only, "--out", str(out), "--work", str(tmp_path / "work")]
    done = launch(warm_python, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    rows = found["rows"]
    assert found["toy"]
    claims = [(check.name, claim.text) for check in CHECKS if check.name in only for claim in check.claims]
    assert sorted((row["check"], row["claim"]) for row in rows) == sorted(claims)
    assert rows[0]["check"] == "fsdp2"  # which no GPU has run yet
    assert {row["verdict"] for row in rows} == {"HOLDS", "NOT RUN"}
    assert {row["why"] for row in rows if row["verdict"] == "NOT RUN"} == {truth.ON_TOYS, "needs a GPU"}
    assert all(row["measured"].startswith("toy: ") for row in rows if row["why"] != "needs a GPU")


@pytest.mark.parametrize("module", sorted({check.module for check in CHECKS}))
def test_every_check_is_implemented(module: str) -> None:
    named = {check.name for check in CHECKS if check.module == module}
    assert named == import_module(f"gpu.{module}").RUN.keys()


def test_hanging_check_is_killed_at_its_deadline(tmp_path: Path) -> None:
    scale = Scale(toy=True, folder=tmp_path)
    ended = truth.run_check(CHECK, scale, 0.1)
    assert ended.seconds < 10
    assert {(row.verdict, row.why) for row in truth.rows(CHECK, ended, scale)} == {
        ("NOT RUN", "was not done after 0 s")
    }


def test_claim_limits_are_one_sided_and_errors_keep_what_was_measured() -> None:
    assert [AT_LEAST_CLAIM.holds(value) for value in (2.0, 1.9, float("nan"))] == [True, False, False]
    assert [AT_MOST_CLAIM.holds(value) for value in (0.5, 0.6, float("nan"))] == [True, False, False]
    assert (AT_LEAST_CLAIM.bound, AT_MOST_CLAIM.bound) == (">= 2 times", "<= 0.5")
    reports = [("speed", float("nan"), ""), ("error", 0.1, "")]
    row = truth.rows(CHECK, truth.Ended(reports, "", 1.0), Scale(toy=False, folder=Path()))[0]
    assert (row.verdict, row.value, row.measured) == ("REFUTED", None, "nan times")
    ended = truth.Ended([("error", 0.6, "of all")], "OutOfMemoryError: 79 GB", 3.0)
    lost, kept = truth.rows(CHECK, ended, Scale(toy=False, folder=Path()))
    assert (lost.verdict, lost.why, lost.failed) == ("NOT RUN", "OutOfMemoryError: 79 GB", True)
    assert (kept.verdict, kept.measured, kept.value, kept.failed) == ("REFUTED", "0.6 (of all)", 0.6, False)
    reports = [("speed", 0.1, ""), ("error", 0.1, "")]
    rows = truth.rows(CHECK, truth.Ended(reports, "", 1.0), Scale(toy=True, folder=Path()))
    assert [(row.verdict, row.measured, row.why) for row in rows] == [
        ("NOT RUN", "toy: 0.1 times", truth.ON_TOYS),
        ("HOLDS", "toy: 0.1", ""),
    ]


@pytest.mark.slow
def test_exhausted_budget_starts_no_checks(tmp_path: Path, warm_vllm: str) -> None:
    out = tmp_path / "truth.json"
    words = ["tests/gpu/truth.py", "--only", "machine", "log_probs", "--budget", "0", "--out", str(out)]
    # As from a Python that is not warm, it makes one: from this, which has the modules.
    start = "del os.environ['PYTHON_EXEC']; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = launch(warm_vllm, "-c", f"import os, runpy, sys; {start}", *words, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert {row["why"] for row in json.loads(out.read_text())["rows"]} == {"the budget of 0 s is spent"}

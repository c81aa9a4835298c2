"""The benchmark itself, on shapes that take seconds: it runs, and what it compares is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import launch

pytestmark = pytest.mark.slow

TINY = ["--hidden", "64", "--layers", "1", "--prompt", "64", "--completion", "8", "--repetitions", "1"]


def test_scores_and_losses_that_are_compared_are_the_same(tmp_path: Path, warm_python: str) -> None:
    done = launch(warm_python, "tests/benchmarks/scoring.py", *TINY, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "scoring.json").read_text())["results"]
    assert [result["case"] for result in results] == ["scoring", "rewardbench", "update"]
    assert all(result["difference"] < 1e-5 for result in results)
    assert [round(result["token_bound"]) for result in results] == [3, 3, 2]

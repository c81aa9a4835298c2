"""The benchmark itself, on shapes that take seconds: it runs, and what it compares is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import launch

pytestmark = pytest.mark.slow

TINY = ["--hidden", "64", "--layers", "1", "--shrink", "16", "--repetitions", "1"]


def test_updates_that_are_compared_have_the_same_gradient(tmp_path: Path, warm_python: str) -> None:
    done = launch(warm_python, "tests/benchmarks/update.py", *TINY, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = json.loads((tmp_path / "update.json").read_text())["runs"]
    assert [result["case"] for result in results if "gradient_error" not in result] == [
        "whole step with rollouts, P 512, C 64",
        "whole step with rollouts, P 1024, C 128",
        "criteria_gain in a whole step, P 1024, C 128",
    ]
    assert all(result["gradient_error"] < 1e-5 for result in results if "gradient_error" in result)
    assert all(len(seconds) == 1 for result in results for seconds in result["seconds"].values())
    # G = 8, lengths divided by 16: 8 x (32 + 4) / (32 + 8 x 4).
    assert results[0]["token_bound"] == pytest.approx(4.5)
    assert (results[0]["padding"], results[3]["idle"], results[4]["idle"]) == (1, 1, 2)
    assert results[3]["padding"] > 1.2
    assert results[3]["positions"] > 1.2
    assert (tmp_path / "update.svg").read_text().startswith("<svg")

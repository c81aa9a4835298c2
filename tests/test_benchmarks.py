"""The benchmarks themselves, on shapes that take seconds: they run, and what they compare is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import launch

pytestmark = [pytest.mark.slow, pytest.mark.long]

TINY = ["--hidden", "64", "--layers", "1", "--repetitions", "1"]


def found(python: str, folder: Path, script: str, *words: str) -> Any:
    """What a benchmark writes into its one file."""
    done = launch(python, f"tests/benchmarks/{script}.py", "--out", str(folder), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.json")
    return json.loads(file.read_text())


def test_compared_scores_and_losses_agree(tmp_path: Path, warm_python: str) -> None:
    results = found(warm_python, tmp_path, "scoring", *TINY, "--prompt", "64", "--completion", "8")["results"]
    assert [result["case"] for result in results] == ["scoring", "rewardbench", "update"]
    assert all(result["difference"] < 1e-5 for result in results)
    assert [round(result["token_bound"]) for result in results] == [3, 3, 2]


def test_pretrained_sides_give_the_same(tmp_path: Path, warm_python: str, small_run: Path) -> None:
    model = str(small_run / "model")
    results = found(warm_python, tmp_path, "pretrained", "--repetitions", "1", "--model", model)
    assert results["sft"]["difference"] < 1e-5
    assert results["rollouts"]["equal rows"] == 1


def test_compared_updates_have_equal_gradients(tmp_path: Path, warm_python: str) -> None:
    (results,) = found(warm_python, tmp_path, "update", *TINY, "--vocabulary", "1024", "--shrink", "16")["runs"]
    assert [result["case"] for result in results if "gradient_error" not in result] == [
        "criteria_gain in a whole step, P 1024, C 128"
    ]
    assert all(result["gradient_error"] < 1e-5 for result in results if "gradient_error" in result)
    assert all(len(seconds) == 1 for result in results for seconds in result["seconds"].values())
    # G = 8, lengths divided by 16: 8 x (32 + 4) / (32 + 8 x 4).
    assert results[0]["token_bound"] == pytest.approx(4.5)
    assert (results[0]["padding"], results[3]["idle"], results[4]["idle"]) == (1, 1, 2)
    assert results[3]["padding"] > 1.2
    assert results[3]["positions"] > 1.2
    assert (tmp_path / "update.svg").read_text().startswith("<svg")

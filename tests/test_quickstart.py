"""The quick start as it is: what the README says of it, measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import yaml
from conftest import ROOT, command, launch

from think_as_locals.config.schema import RunConfig
from think_as_locals.data import load
from think_as_locals.data.sources import jsonl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """The folder of a whole quick start."""
    folder = tmp_path_factory.mktemp("runs")
    done = launch(
        # Rounding differs between kinds of CPU: of the seeds measured on two kinds this one moves least.
        *(command("tal", warm_python), "run", "recipes/quickstart.yaml", "seed=1"),
        *(f"run.dir={folder}", "run.name=quickstart"),
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "quickstart"


def _carb(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was measured before GRPO and after it."""
    before, *_, after = sorted((json.loads(p.read_text()) for p in run.glob("carb/*.json")), key=lambda s: s["step"])
    return before, after


@pytest.mark.timeout(1600)
def test_grpo_removes_the_bias_that_the_cold_start_taught(quickstart: Path) -> None:
    before, after = _carb(quickstart)
    assert before["split"] == after["split"] == "pairing"
    assert before["accuracy"] <= 0.60
    assert after["accuracy"] >= 0.80
    assert after["accuracy"] - before["accuracy"] >= 0.15
    assert before["ci95"][1] < after["ci95"][0]
    assert max(before["parse_failure"], after["parse_failure"]) <= 0.02


def test_flips_are_beyond_what_a_judge_blind_to_culture_can_score(quickstart: Path) -> None:
    flips = _carb(quickstart)[1]["flips"]
    assert flips["n"] >= 400
    assert flips["ci95"][0] > 0.25


def test_baselines_stand_at_chance(quickstart: Path) -> None:
    for name, baseline in _carb(quickstart)[1]["baselines"].items():
        assert baseline["accuracy"] == pytest.approx(0.25, abs=0.05), name


def test_transformers_and_vllm_give_the_verdicts_of_training_on_100_items(
    quickstart: Path, tmp_path: Path, warm_vllm: str
) -> None:
    config = RunConfig.model_validate(yaml.safe_load((quickstart / "config.yaml").read_text()))
    table = quickstart / "carb" / f"step-{config.grpo.max_steps}.parquet"
    rows = parquet.read_table(table).to_pylist()[:100]
    by_id = {item.id: item for item in load(config.data, config.seed).test}
    path = tmp_path / "items.jsonl"
    jsonl.write([by_id[row["id"]] for row in rows], path)
    script = str(ROOT / "tests" / "engines" / "vllm_process.py")
    done = launch(
        warm_vllm, script, "compare", str(quickstart / "model"), str(path), PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"
    )
    assert done.returncode == 0, done.stderr
    texts = json.loads(path.with_suffix(".result.json").read_text())["texts"]
    verdicts = [text.rpartition("<verdict>")[2] for text in (row["completion"] for row in rows)]
    for backend in ("transformers", "vllm"):
        assert [text.rpartition("<verdict>")[2] for text in texts[backend]] == verdicts, backend

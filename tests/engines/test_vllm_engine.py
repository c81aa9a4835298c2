"""The real engine, on CPU: the same words as transformers, and the policy's current weights after every sync."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import QUICK, ROOT, SMALL, command, launch

from think_as_locals.config.schema import RunConfig
from think_as_locals.data import load
from think_as_locals.data.sources import jsonl

pytestmark = pytest.mark.slow

SCRIPT = str(ROOT / "tests" / "engines" / "vllm_process.py")


@pytest.fixture(scope="module")
def found(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process with vLLM and transformers found on 100 items."""
    config = RunConfig.model_validate(yaml.safe_load((small_run / "config.yaml").read_text()))
    items = tmp_path_factory.mktemp("vllm") / "items.jsonl"
    splits = load(config.data, config.seed)
    jsonl.write([*splits.test, *splits.train][:100], items)
    done = launch(sys.executable, SCRIPT, str(small_run), str(items))
    assert done.returncode == 0, done.stderr
    return json.loads(items.with_suffix(".json").read_text())


def test_vllm_writes_what_transformers_writes_on_100_items(found: dict[str, Any]) -> None:
    vllm, transformers = found["vllm"]["texts"], found["transformers"]["texts"]
    assert len(vllm) == 96  # as many as there are
    same = [a == b for a, b in zip(vllm, transformers, strict=True)]
    # Two kernels may round a tie differently; a wrong weight or prompt would change nearly all.
    assert sum(same) >= 0.98 * len(same)


def test_vllm_is_as_sure_of_its_verdicts_as_transformers(found: dict[str, Any]) -> None:
    of_vllm, of_transformers = found["vllm"]["labels"], found["transformers"]["labels"]
    assert len(of_vllm) == 24
    assert sum(bool(labels) for labels in of_vllm) >= 16
    for vllm, transformers in zip(of_vllm, of_transformers, strict=True):
        assert vllm == pytest.approx(transformers, abs=1e-4)


def test_a_weight_sync_changes_the_samples_to_the_policys(found: dict[str, Any]) -> None:
    texts = found["sync"]
    assert texts["after"] != texts["before"]
    same = [a == b for a, b in zip(texts["after"], texts["policy"], strict=True)]
    assert sum(same) >= 0.95 * len(same)


def test_the_quick_start_runs_with_vllm(tmp_path: Path) -> None:
    words = [*SMALL, *QUICK, "rollout=vllm", f"run.dir={tmp_path}", "run.name=vllm"]
    done = launch(command("tal"), "run", "recipes/quickstart.yaml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "vllm" / "carb" / "step-2.json").read_text())["n"] == 4
    logged = [json.loads(line) for line in (tmp_path / "vllm" / "metrics.jsonl").read_text().splitlines()]
    # vLLM's log-probabilities and the trainer's agree: TRL logs their difference.
    gaps = [line["sampling/sampling_logp_difference/max"] for line in logged if "reward" in line]
    assert len(gaps) == 2
    assert max(gaps) < 1e-3
    assert all(line["rollout/probe_difference"] < 1e-3 for line in logged if "reward" in line)

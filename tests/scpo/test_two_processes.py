"""SCPO on two processes gives the results of one, even if a pass over the pairs ends within a batch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from conftest import ROOT, command, launch
from scpo import two_processes as steer

from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.run import start

pytestmark = pytest.mark.slow

RECIPE = "recipes/scpo_quickstart.yaml"
PATH = os.pathsep.join(filter(None, [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH")]))
WHOLE, LORA = "zero2", "lora_zero2"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> Path:
    """Of one process (`one`) and of two in every way (`two`), steered from the same global RM."""
    folder = tmp_path_factory.mktemp("steered")
    pooled = [*steer.STEERED, "global_rm.max_steps=60", "scpo.max_steps=1", "scpo.pair_counts=[]"]
    pooled += ["global_rm.batch_size=16", "global_rm.per_device_train_batch_size=16"]
    start(RECIPE, [*pooled, f"run.dir={folder}", "run.name=pooled"])
    model = folder / "pooled" / "global_rm" / "model"
    launcher = [warm_python, command("accelerate"), "launch", "--config_file", "launch/cpu_zero2.yaml"]
    done = launch(*launcher, "tests/scpo/two_processes.py", str(model), str(folder / "two"), PYTHONPATH=PATH)
    assert done.returncode == 0, done.stdout + done.stderr
    for case in (WHOLE, LORA):
        start(RECIPE, steer.overrides(model, folder / "one", case))
    return folder


@pytest.mark.parametrize("case", steer.WAYS)
def test_two_processes_match_the_curves_and_results_of_one(runs: Path, case: str) -> None:
    one, two = runs / "one" / (LORA if "lora" in case else WHOLE), runs / "two" / case
    expected, found = steer.curves(one), steer.curves(two)
    assert found.keys() == expected.keys()
    assert found.keys() == {"TH/scpo-seed-0", "TH/scpo-50-seed-0"}
    for stage, curve in expected.items():
        difference = (torch.tensor(found[stage]) - torch.tensor(curve)).abs().max(0).values
        loss, gradient_norm, *others = difference.tolist()
        assert loss < 1e-5, (stage, loss)
        assert gradient_norm < 1e-3, (stage, gradient_norm)
        assert others == [0, 0], stage
        assert max(losses := [step[0] for step in curve]) - min(losses) > 0.01
    assert (two / "scpo.json").read_bytes() == (one / "scpo.json").read_bytes()
    saved, plain = (ScalarRM.load(str(run / "models" / "TH" / "scpo-seed-0")).model.state_dict() for run in (two, one))
    assert saved.keys() == plain.keys()  # no adapter's
    assert all(torch.allclose(value, plain[name], atol=1e-4) for name, value in saved.items())
    # A pass over the pairs ends within a batch.
    result = json.loads((one / "variants" / "TH" / "scpo-50-seed-0" / "result.json").read_text())
    assert result["kept"] % steer.GLOBAL_BATCH
    assert result["steps"] == -(-3 * result["kept"] // steer.GLOBAL_BATCH) > result["kept"] / steer.GLOBAL_BATCH


def test_ranks_divide_the_scoring_without_duplicates(runs: Path) -> None:
    def keys(file: Path) -> list[str]:
        return [json.loads(line)["key"] for line in file.read_text(encoding="utf-8").splitlines()[1:]]

    everything = keys(runs / "one" / WHOLE / "global_rm" / "scores" / "rank-0.jsonl")
    for case in steer.WAYS:
        ranks = [keys(runs / "two" / case / "global_rm" / "scores" / f"rank-{rank}.jsonl") for rank in (0, 1)]
        assert abs(len(ranks[0]) - len(ranks[1])) <= 1
        assert sorted(ranks[0] + ranks[1]) == sorted(everything)

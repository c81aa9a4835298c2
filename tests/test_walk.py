"""The whole way, small: a trained judge demonstrates, a fresh one is taught and trained, and both select answers.

`benchmarks/walk.py` walks it in full, with the teacher behind vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, Tal

from think_as_locals.evaluation import carb
from think_as_locals.reward_models.training_items import item_hash, read_training_items
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import Item

pytestmark = pytest.mark.slow


def test_a_judge_teaches_a_fresh_one_and_both_select_answers_of_a_policy(
    tal: Tal, small_run: Path, tmp_path: Path
) -> None:
    model, runs = small_run / "model", f"run.dir={tmp_path}"
    data = [word for word in SMALL if word.startswith("data.")]
    teacher = [f"teacher.path={model}", "data=quickstart_cards", *data, "data.max_items=200", "tries=2"]
    shown = tal("demonstrate", *teacher, runs, "run.name=shown", "--json")
    assert shown.status == 0, shown.err
    found = json.loads(shown.out)
    assert found["ci95"][0] <= found["yield"] <= found["ci95"][1]
    file = tmp_path / "shown" / "demonstrations.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == found["right"] > 0

    taught = tal("run", "quickstart", *SMALL, *QUICK, f"sft.data={file}", runs, "run.name=fresh", "--json")
    assert taught.status == 0, taught.err
    assert (json.loads(taught.out)["step"], json.loads(taught.out)["n"]) == (2, 4)
    fresh = RunFolder(tmp_path / "fresh")
    assert carb.read(fresh.measured("test", 2))["n"] == 4
    hashes = read_training_items(str(fresh.model))
    assert hashes is not None
    assert {item_hash(Item(**row["item"])) for row in rows} <= hashes

    judges = [w for n, p in (("old", model), ("new", fresh.model)) for w in (f"rms.{n}=judge", f"rms.{n}.path={p}")]
    policy = [f"sample.policy.path={model}", "sample.num_candidates=3", "sample.max_completion_length=24"]
    scorer = ["sample.scorer=classifier", f"sample.scorer.path={model}", "sample.scorer.new_head_seed=0"]
    task = ["sample=prompts", "sample.policy=model", "sample.data=quickstart_cards", "sample.data.max_items=8", *scorer]
    measured = ["data=quickstart_cards", *data, "eval.items=test", "eval.max_items=16", "eval.bootstrap_samples=50"]
    done = tal(
        "run",
        "downstream",
        *task,
        *policy,
        *judges,
        *measured,
        "~rms.deberta",
        "~rms.tulu",
        runs,
        "run.name=v",
        "--json",
    )
    assert done.status == 0, done.err
    assert json.loads(done.out)["boards"]
    selections = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "v" / "selections").glob("*.json")}
    assert selections.keys() == {"old", "new", "constant"}
    for each in selections.values():
        assert each["random"]["mean"] <= each["oracle"]["mean"]
        assert each["selected"]["ci95"][0] <= each["selected"]["mean"] <= each["oracle"]["mean"]
    validity = tmp_path / "v" / "validity.json"
    assert validity.is_file() or "no r2: " in done.err  # two judges that learnt nothing may choose alike

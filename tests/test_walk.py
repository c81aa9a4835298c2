"""The whole pipeline, scaled down: teacher demonstrations, a judge trained on a mix, best-of-N and r2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import QUICK, SMALL, Tal
from data.sources.test_blend import a_folder

from think_as_locals.evaluation import carb
from think_as_locals.reward_models.training_items import item_hash, read_training_items
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import Item

pytestmark = pytest.mark.slow

DATA = [word for word in SMALL if word.startswith("data.")]
NON_DATA_SETTINGS = [word for word in SMALL if not word.startswith("data.")]
ANSWERS = {"US": "pancakes", "UK": "toast", "China": "porridge", "Mexico": "tortilla", "Iran": "flatbread"}
VOTES = {region: {answer: 5} for region, answer in ANSWERS.items()}
EVAL_SETS = ["eval.sets.four_orders=quickstart_cards", "eval.sets.four_orders.orders=4", "eval.leaks=report"]
EVAL_SETS += ["eval.sets.cards_as_pairs=quickstart_cards", "eval.sets.cards_as_pairs.data.num_responses=2"]
EVAL_SETS += [
    f"eval.sets.{name}.{word}" for name in ("four_orders", "cards_as_pairs") for word in ("items=test", *DATA)
]


def test_pipeline_runs_from_teacher_to_leaderboard_and_r2(tal: Tal, small_run: Path, tmp_path: Path) -> None:
    model, runs = small_run / "model", f"run.dir={tmp_path}"
    blend = [f"path={a_folder(tmp_path / 'blend', {'Al-en-01': VOTES})}", "as_pairs=true", "test_share=0.25"]
    mix = ["data=mix", "data.mix.cards=quickstart_cards", *(word.replace("data", "data.mix.cards", 1) for word in DATA)]
    mix += ["data.mix.blend=quickstart_blend", *(f"data.mix.blend.{word}" for word in blend)]
    teacher = [f"teacher.path={model}", *mix, "data.mix.cards.max_items=200", "tries=2"]
    shown = tal("demonstrate", *teacher, runs, "run.name=shown", "--json")
    assert shown.status == 0, shown.err
    found = json.loads(shown.out)
    assert found["ci95"][0] <= found["yield"] <= found["ci95"][1]
    file = tmp_path / "shown" / "demonstrations.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == found["right"] > 0

    words = [*NON_DATA_SETTINGS, *QUICK, *mix, *EVAL_SETS, f"sft.data={file}", runs, "run.name=fresh", "--json"]
    taught = tal("run", "quickstart", *words)
    assert taught.status == 0, taught.err
    assert (json.loads(taught.out)["step"], json.loads(taught.out)["n"]) == (2, 8)  # four of each source
    fresh = RunFolder(tmp_path / "fresh")
    assert {*fresh.evaluated_sets()} >= {"test", "cards", "blend", "four_orders", "cards_as_pairs"}
    for name in fresh.evaluated_sets():
        assert [*fresh.evaluated_steps(name)] == [0, 1, 2]
    assert carb.read(fresh.evaluation("cards_as_pairs", 2))["by_domain"]
    assert carb.read(fresh.evaluation("four_orders", 2))["order_consistency"]["n"]
    hashes = read_training_items(str(fresh.model))
    assert hashes is not None
    assert {item_hash(Item(**row["item"])) for row in rows} <= hashes

    judges = {"old": model, "new": fresh.model, "base": fresh.cold_start.model}
    rms = [word for name, path in judges.items() for word in (f"rms.{name}=judge", f"rms.{name}.path={path}")]
    policy = [f"sample.policy.path={model}", "sample.num_candidates=3", "sample.max_completion_length=24"]
    scorer = ["sample.scorer=implicit", f"sample.scorer.path={model}", "sample.scorer.reference=null"]
    task = ["sample=prompts", "sample.policy=model", "sample.data=quickstart_cards", "sample.data.max_items=8", *scorer]
    measured = ["data=quickstart_cards", *DATA, "eval.items=test", "eval.max_items=16", "eval.bootstrap_samples=50"]
    others = ["~rms.deberta", "~rms.tulu", runs, "run.name=v", "--json"]
    done = tal("run", "downstream", *task, *policy, *rms, *measured, *others)
    assert done.status == 0, done.err
    assert json.loads(done.out)["boards"]
    selections = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "v" / "selections").glob("*.json")}
    assert selections.keys() == {*judges, "constant"}
    for each in selections.values():
        assert each["random"]["mean"] <= each["oracle"]["mean"]
        assert each["selected"]["ci95"][0] <= each["selected"]["mean"] <= each["oracle"]["mean"]
    validity = tmp_path / "v" / "validity.json"
    assert validity.is_file() or "no r2: " in done.err  # judges that learnt nothing may choose alike

    board = tal("leaderboard", *(str(tmp_path / name) for name in ("fresh", "v")), "--out", str(tmp_path), "--json")
    assert board.status == 0, board.err
    names = {row["name"] for table in json.loads(board.out)["boards"] for row in table["models"]}
    assert {*judges} <= names

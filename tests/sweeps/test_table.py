"""The table of a sweep: best first, each job paired by item with its base and with the first of its like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluation.judged import flip_items, judge_all, measure
from sweeps.test_grid import jobs as jobs_of

from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.sweeps.sweep import Job, make_jobs, write_table

ITEMS = flip_items(groups=8)
Right = Callable[[int], float | None]


def measured(folder: Path, job: Job, before: Right, after: Right) -> None:
    for step, right in ((0, before), (5, after)):
        measure(folder / job.name, step, judge_all(right, ITEMS), model="judge")


def judges(folder: Path, jobs: list[Job], **states: Any) -> list[dict[str, Any]]:
    table, _ = write_table(folder, jobs, {job.name: states.get(job.label, "done") for job in jobs})
    found: list[dict[str, Any]] = json.loads((folder / "sweep.json").read_text())["judges"]
    assert [*table["job"]] == [row["name"] for row in found]
    return found


def test_jobs_are_compared_per_item_with_base_and_first_best_first(tmp_path: Path) -> None:
    found = jobs_of("ablations")
    for job, after in zip(found, (lambda i: float(i % 2), lambda i: float(i % 4 > 0), lambda _: 0.0), strict=True):
        measured(tmp_path, job, lambda i: None if i % 2 else 0.0, after)
    rows = judges(tmp_path, found)
    assert [row["name"] for row in rows] == ["base of full", "without_gain", "full", "without_correctness"]
    assert [(row["step"], row["n"], row["accuracy"]) for row in rows] == [
        (0, 96, 0.0), (5, 96, 0.75), (5, 96, 0.5), (5, 96, 0.0),
    ]  # fmt: skip
    against = [(row["against_base"] or {}).get("difference") for row in rows]
    assert against == [None, 0.75, 0.5, 0.0]
    assert [(row["against_first"] or {}).get("difference") for row in rows] == [None, 0.25, None, -0.5]
    assert rows[1]["against_base"]["p_holm"] < 0.001 < rows[3]["against_base"]["p_holm"] == 1.0
    assert rows[0]["parse_failure"] == 0.5
    assert "without\\_gain" in (tmp_path / "sweep.md").read_text()


def test_jobs_of_one_seed_are_compared_and_validation_items_rank_them(tmp_path: Path) -> None:
    found = make_jobs("quickstart", ["grpo.beta=0.1,0.2", "seed=1,2"])
    for job, accuracy in zip(found, (0.3, 0.4, 0.5, 0.6), strict=True):
        measured(tmp_path, job, lambda _: 0.0, lambda _: 1.0)
        file = RunFolder(tmp_path / job.name).evaluation("validation", 5)
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"step": 5, "n": 9, "accuracy": accuracy, "ci95": [0.0, 1.0]}))
    rows = judges(tmp_path, found, **{"grpo.beta=0.2 seed=2": "failed"})
    tested = RunFolder(tmp_path / found[0].name).evaluation("test", 5)
    assert [row["name"] for row in rows[-4:]] == [
        "grpo.beta=0.2 seed=1", "grpo.beta=0.1 seed=2", "grpo.beta=0.1 seed=1", "grpo.beta=0.2 seed=2",
    ]  # fmt: skip
    assert [bool(row["against_first"]) for row in rows[-4:]] == [True, False, False, True]
    assert (rows[-1]["state"], rows[-1]["validation"]["accuracy"]) == ("failed", 0.6)
    assert "†" not in (tmp_path / "sweep.md").read_text()
    tested.write_text(json.dumps({**json.loads(tested.read_text()), "trained_on": {"items": 3, "n": 96}}))
    judges(tmp_path, found)
    assert (tmp_path / "sweep.md").read_text().count("†") == 2  # the judge's figure, and the caption


def test_adapter_that_a_cold_start_trains_has_its_own_base(tmp_path: Path) -> None:
    whole, adapter = make_jobs("pretrained", ["lora=none,rank16", "model.path=m", "data.path=d"])
    measured(tmp_path, whole, lambda _: 0.0, lambda _: 1.0)
    measured(tmp_path, adapter, lambda _: 1.0, lambda _: 1.0)
    rows = judges(tmp_path, [whole, adapter])
    assert [row["against_base"]["difference"] for row in rows[2:]] == [1.0, 0.0]


def test_each_prompt_has_its_own_base_and_unmeasured_jobs_have_no_figures(tmp_path: Path) -> None:
    ours, rm_r1, j1 = jobs_of("methods")
    measured(tmp_path, ours, lambda _: 0.0, lambda _: 1.0)
    measured(tmp_path, rm_r1, lambda i: float(i % 2), lambda _: 1.0)
    RunFolder(tmp_path / j1.name).carb_dir.mkdir(parents=True)
    rows = judges(tmp_path, [ours, rm_r1, j1], j1="failed")
    assert [row["name"] for row in rows] == ["base of ours", "base of rm_r1", "ours", "rm_r1", "j1"]
    assert [row["against_base"]["difference"] for row in rows[2:4]] == [1.0, 0.5]
    assert rows[3]["against_first"]["difference"] == 0.0
    assert (rows[4]["accuracy"], rows[4]["state"]) == (None, "failed")

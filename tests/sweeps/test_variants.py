"""A sweep's variants: recipes that name them, the jobs they become, and the paired table over the same items."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from evaluation.judged import flip_items, judge_all, measure

from think_as_locals.config.compose import compose_recipe
from think_as_locals.run import start
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.sweeps.jobs import Job, freeze, make_jobs
from think_as_locals.sweeps.settings import Space, parse
from think_as_locals.sweeps.sweep import write_variants
from think_as_locals.types import ConfigError

ITEMS = flip_items(groups=8)
SWEEPS = {
    "ablations": ["full", "without_gain", "without_correctness"],
    "ablations_quickstart": ["full", "without_gain", "without_correctness"],
    "methods": ["ours", "rm_r1", "j1"],
    "methods_quickstart": ["ours", "rm_r1", "j1"],
    "culture_shown": ["stated", "inferred", "hidden"],
    "culture_shown_quickstart": ["stated", "inferred", "hidden"],
    "rubric_language": ["local", "english"],
}


def space(recipe: str, *overrides: str) -> Space:
    return replace(parse(list(overrides)), variants=compose_recipe(f"recipes/{recipe}.yaml")["variants"])


@cache
def jobs(recipe: str, *overrides: str) -> list[Job]:
    asked = space(recipe, *overrides)
    return make_jobs(f"recipes/{recipe}.yaml", asked, asked.combinations("grid"))


@pytest.mark.parametrize("recipe", SWEEPS)
def test_variants_become_jobs_with_identical_data_and_budget(recipe: str, tmp_path: Path) -> None:
    found = jobs(recipe)
    assert [job.combination for job in found] == [(f"variant={name}",) for name in SWEEPS[recipe]]
    same = {
        repr((job.config.data, job.config.grpo, job.config.rollout, job.config.model, job.config.sft)) for job in found
    }
    assert len(same) == 1
    assert len({job.config.reward.weights["structure"] for job in found}) == 1
    assert len({repr((job.config.reward, job.config.prompt)) for job in found}) == len(found)
    assert "variants: {}" in freeze(found[0], tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", ["methods", "methods_quickstart"])
def test_methods_recipes_hide_the_culture_from_every_method(recipe: str) -> None:
    assert [job.config.prompt.culture for job in jobs(recipe)] == ["hidden"] * 3  # rm_r1's prompt does not mention it


def test_recipes_with_variants_are_the_expected_ones() -> None:
    recipes = [path.stem for path in (ROOT / "recipes").glob("*.yaml")]
    assert {name for name in recipes if compose_recipe(f"recipes/{name}.yaml").get("variants")} == {*SWEEPS}


def test_variants_are_crossed_with_other_swept_values() -> None:
    found = jobs("rubric_language", "seed=1,2", "model=qwen3_8b")
    assert [job.combination for job in found] == [
        (f"variant={name}", f"seed={seed}") for name in SWEEPS["rubric_language"] for seed in (1, 2)
    ]
    assert [(job.config.prompt.rubric_language, job.config.seed) for job in found] == [
        ("item", 1), ("item", 2), ("en", 1), ("en", 2),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="the recipe has variants, of which each is run"):
        space("methods").combinations("optuna")


def test_recipe_with_variants_cannot_start_as_a_single_run() -> None:
    with pytest.raises(ConfigError, match=r"methods is a sweep over variants \(ours, rm_r1, j1\): tal run -m"):
        start("recipes/methods.yaml", [])


Right = Callable[[int], float | None]


def measured(folder: Path, job: Job, before: Right, after: Right) -> None:
    for step, right in ((0, before), (5, after)):
        measure(folder / job.name, step, judge_all(right, ITEMS), model="judge")


def test_variants_are_compared_per_item_with_base_and_first_variant(tmp_path: Path) -> None:
    found = jobs("ablations")
    for job, after in zip(found, (lambda i: float(i % 4 > 0), lambda i: float(i % 2), lambda _: 0.0), strict=True):
        measured(tmp_path, job, lambda i: None if i % 2 else 0.0, after)
    table = write_variants(tmp_path, found)
    rows: list[dict[str, Any]] = json.loads((tmp_path / "variants.json").read_text())["variants"]
    assert [row["name"] for row in rows] == ["base of full", "full", "without_gain", "without_correctness"]
    assert [(row["step"], row["n"], row["accuracy"]) for row in rows] == [
        (0, 96, 0.0), (5, 96, 0.75), (5, 96, 0.5), (5, 96, 0.0),
    ]  # fmt: skip
    against = [(row["against_base"] or {}).get("difference") for row in rows]
    assert against == [None, 0.75, 0.5, 0.0]
    assert [(row["against_first"] or {}).get("difference") for row in rows] == [None, None, -0.25, -0.75]
    assert rows[1]["against_base"]["p_holm"] < 0.001 < rows[3]["against_base"]["p_holm"] == 1.0
    assert rows[0]["parse_failure"] == 0.5
    assert "without\\_gain" in (tmp_path / "variants.md").read_text()
    assert len(table.rows) == 4


def test_each_prompt_has_its_own_base_and_unmeasured_jobs_are_omitted(tmp_path: Path) -> None:
    ours, rm_r1, j1 = jobs("methods")
    measured(tmp_path, ours, lambda _: 0.0, lambda _: 1.0)
    measured(tmp_path, rm_r1, lambda i: float(i % 2), lambda _: 1.0)
    RunFolder(tmp_path / j1.name).carb_dir.mkdir(parents=True)
    write_variants(tmp_path, [ours, rm_r1, j1])
    rows = json.loads((tmp_path / "variants.json").read_text())["variants"]
    assert [row["name"] for row in rows] == ["base of ours", "base of rm_r1", "ours", "rm_r1"]
    assert [row["against_base"]["difference"] for row in rows[2:]] == [1.0, 0.5]
    assert rows[3]["against_first"]["difference"] == 0.0


def test_variant_with_its_own_cold_start_has_its_own_base(tmp_path: Path) -> None:
    swept = replace(space("quickstart"), variants={name: [f"reward={name}"] for name in ("j1", "full")})
    swept = replace(swept, fixed=["prompt=compact_rubric"])
    plain, named = make_jobs("recipes/quickstart.yaml", swept, swept.combinations("grid"))
    for job, before in ((plain, 0.0), (named, 1.0)):
        measured(tmp_path, job, lambda _, value=before: value, lambda _: 1.0)
    write_variants(tmp_path, [plain, named])
    rows = json.loads((tmp_path / "variants.json").read_text())["variants"]
    assert [(row["name"], row["accuracy"]) for row in rows[:2]] == [("base of j1", 0.0), ("base of full", 1.0)]

"""The grid of a sweep: combinations in Hydra's grammar, variants as one axis, and faults before anything starts."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.config.checks import load_recipe
from think_as_locals.run import start
from think_as_locals.sweeps.sweep import Job, freeze, job_name, make_jobs, split_values
from think_as_locals.types import ConfigError

QUICKSTART = "recipes/quickstart.yaml"
LEARNING_RATES, SEEDS = ["grpo.learning_rate=1e-06", "grpo.learning_rate=5e-06"], ["seed=1", "seed=2", "seed=3"]
SWEEPS = {
    "ablations": ["full", "without_gain", "without_correctness"],
    "ablations_quickstart": ["full", "without_gain", "without_correctness"],
    "methods": ["ours", "rm_r1", "j1"],
    "methods_quickstart": ["ours", "rm_r1", "j1"],
    "culture_shown": ["stated", "inferred", "hidden"],
    "culture_shown_quickstart": ["stated", "inferred", "hidden"],
    "rubric_language": ["local", "english"],
}


@cache
def jobs(recipe: str) -> list[Job]:
    return make_jobs(f"recipes/{recipe}.yaml", [])


@settings(max_examples=50)
@given(st.lists(st.text(min_size=1, max_size=99), max_size=4))
def test_a_job_name_is_a_valid_run_name_for_any_values(texts: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", job_name(tuple(f"data.path={text}" for text in texts)))


def test_job_names_are_unique_and_independent_of_override_order() -> None:
    names = {job_name((f"data.path={path}", f"seed={seed}")) for path in ("a/b", "a b", "a-b") for seed in (1, 2)}
    assert len(names) == 6
    # Or a sweep that continues with its overrides in another order would repeat what is done.
    assert job_name(("seed=1", "grpo.beta=0")) == job_name(("grpo.beta=0", "seed=1"))


@pytest.mark.parametrize(
    ("overrides", "shared", "axes"),
    [
        (["seed=1", "data.path='a,b'"], ["seed=1", "data.path='a,b'"], []),
        (["grpo.learning_rate=1e-6,5e-6", "seed=range(1,4)", "grpo.beta=0"], ["grpo.beta=0"], [LEARNING_RATES, SEEDS]),
        (["data.languages=[en],[de,th]"], [], [["data.languages=[en]", "data.languages=[de,th]"]]),
        (["reward=choice(j1,paper)"], [], [["reward=j1", "reward=paper"]]),
    ],
)
def test_values_follow_hydras_grammar(overrides: list[str], shared: list[str], axes: list[list[str]]) -> None:
    assert split_values(overrides) == (shared, axes)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=1,2", "seed=3"], "seed: a key that varies is given once"),
        (["run.name=a,b"], "a sweep has one run.name"),
        (["variant=full,without_gain"], "each variant of a recipe is run; leave one out by ~variants.NAME"),
        (["grpo.beta=interval(0,1)"], r"grpo.beta=interval\(0,1\): .*expected KEY=A,B"),
        (["grpo.beta=choice("], "grpo.beta"),
        (["seed=range(3,1)"], r"seed=range\(3,1\): holds no value"),
    ],
)
def test_invalid_swept_values_are_rejected(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_values(overrides)


def test_error_lists_every_invalid_combination() -> None:
    with pytest.raises(ConfigError) as caught:
        make_jobs(QUICKSTART, ["grpo.beta=0.1,-1", "seed=1,2", "eval.evry_steps=3"])
    message = str(caught.value)
    assert message.startswith("4 of 4 combinations are invalid, none was started:")
    assert message.count("did you mean 'eval.every_steps'?") == 4
    assert message.count("grpo.beta: ") == 2
    assert "\ngrpo.beta=-1 seed=2\n" in message
    with pytest.raises(ConfigError, match="evaluates reward models and trains no judge"):
        make_jobs("recipes/carb.yaml", ["seed=1,2"])
    with pytest.raises(ConfigError, match="nodes_zero3 is for several machines"):
        make_jobs(QUICKSTART, ["run.launch=nodes_zero3"])


def test_frozen_recipe_has_the_values_of_its_job(tmp_path: Path) -> None:
    found = make_jobs(QUICKSTART, ["seed=1,2", "data.languages=[en,de]", "run.launch=cpu_ddp"])
    for seed, job in enumerate(found, start=1):
        frozen = load_recipe(freeze(job, tmp_path))
        run = {"name": job.name, "dir": str(tmp_path), "resume": "auto", "launch": "cpu_ddp"}
        assert frozen.run.model_dump() == run
        assert frozen.model_copy(update={"run": job.config.run}) == job.config
        assert frozen.seed == seed


# --- variants ---


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
    assert yaml.safe_load(freeze(found[0], tmp_path).read_text(encoding="utf-8"))["variants"] == {}


def test_variants_are_crossed_with_other_swept_values() -> None:
    found = make_jobs("rubric_language", ["seed=1,2", "model=qwen3_8b"])
    expected = [*product(SWEEPS["rubric_language"], (1, 2))]
    assert [job.combination for job in found] == [(f"variant={name}", f"seed={seed}") for name, seed in expected]
    assert [(job.config.prompt.rubric_language, job.config.seed) for job in found] == [
        ("item", 1), ("item", 2), ("en", 1), ("en", 2),
    ]  # fmt: skip


def test_recipe_with_variants_cannot_start_as_a_single_run() -> None:
    with pytest.raises(ConfigError, match=r"methods is a sweep over variants \(ours, rm_r1, j1\): tal run -m"):
        start("recipes/methods.yaml", [])

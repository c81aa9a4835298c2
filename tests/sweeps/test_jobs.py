"""The jobs of a sweep before they start: validated together, frozen one by one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.config import load_recipe
from think_as_locals.sweeps.jobs import end, ended, freeze, make_jobs, name_of, recipe_of, state
from think_as_locals.sweeps.space import parse
from think_as_locals.types import ConfigError

QUICKSTART = "recipes/quickstart.yaml"


@given(st.lists(st.text(min_size=1), max_size=4))
def test_a_name_is_one_of_a_run_whatever_the_values_are(texts: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name_of(tuple(f"data.path={text}" for text in texts)))


def test_names_differ_where_combinations_do() -> None:
    names = {name_of((f"data.path={path}", f"seed={seed}")) for path in ("a/b", "a b", "a-b") for seed in (1, 2)}
    assert len(names) == 6
    many = {name_of((f"data.path={'x' * 60}{number}",)) for number in range(20_000)}
    assert len(many) == 20_000


def test_a_combination_has_one_name_in_whatever_order_it_is_given() -> None:
    """Or a sweep that goes on with its words in another order would repeat what is done."""
    assert name_of(("seed=1", "grpo.beta=0")) == name_of(("grpo.beta=0", "seed=1"))


def test_one_message_says_every_combination_that_does_not_hold() -> None:
    space = parse(["grpo.beta=0.1,-1,nan", "seed=1,2", "eval.evry_steps=3"])
    with pytest.raises(ConfigError) as caught:
        make_jobs(QUICKSTART, space, space.combinations("grid"))
    said = str(caught.value)
    assert said.startswith("6 of 6 combinations do not hold, none was started:")
    assert said.count("did you mean 'eval.every_steps'?") == 6
    assert said.count("grpo.beta: got -1") == 2
    assert "\ngrpo.beta=-1 seed=2\n" in said


def test_a_frozen_recipe_says_the_same_and_is_a_file_that_can_be_launched(tmp_path: Path) -> None:
    space = parse(["seed=1,2", "data.languages=[en,de]", "grpo.learning_rate=1e-6"])
    jobs = make_jobs(QUICKSTART, space, space.combinations("grid"))
    paths = [freeze(job, tmp_path) for job in jobs]
    for job, path in zip(jobs, paths, strict=True):
        assert path == recipe_of(tmp_path / "jobs" / job.name)
        frozen = load_recipe(path)
        assert frozen.run.model_dump() == {"name": job.name, "dir": str(tmp_path), "resume": "auto"}
        assert frozen.model_copy(update={"run": job.config.run}) == job.config
        assert path.name == "quickstart.yaml"
        compile(path.read_text(), str(path), "exec")
    assert [load_recipe(path).seed for path in paths] == [1, 2]


@pytest.mark.parametrize(
    "value", ["two\nlines", "a bell \x07", "\u2028", "\u202e", "a # b", "it's", "${recipe}", "| a"]
)
def test_a_frozen_recipe_says_odd_values_too(tmp_path: Path, value: str) -> None:
    space = parse(["data=jsonl", f'data.path="{value}",other'])
    job, _ = make_jobs(QUICKSTART, space, space.combinations("grid"))
    frozen = load_recipe(path := freeze(job, tmp_path))
    assert frozen.data.path == value.replace("${recipe}", "quickstart")
    compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("value", ["it'''s", r"\${seed}"])
def test_what_no_recipe_can_say_is_not_frozen(tmp_path: Path, value: str) -> None:
    space = parse(["data=jsonl", f'data.path="{value}"'])
    (job,) = make_jobs(QUICKSTART, space, [()])
    with pytest.raises(ConfigError, match="no recipe can say literally"):
        freeze(job, tmp_path)
    assert not list((tmp_path / "jobs" / job.name).iterdir())


def test_how_a_job_ended_is_kept(tmp_path: Path) -> None:
    assert ended(tmp_path) is None
    end(tmp_path, 75)
    assert ended(tmp_path) == 75
    assert [state(0), state(75), state(1), state(None), state(None, asked=True)] == [
        "done",
        "stopped",
        "failed",
        "failed",
        "stopped",
    ]

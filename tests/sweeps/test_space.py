"""Overrides with several values: which combinations they come to, and what optuna makes of them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.sweeps.settings import SweepSection
from think_as_locals.sweeps.space import Combination, parse, suggest
from think_as_locals.types import ConfigError

TRIALS = SweepSection(search="optuna", num_trials=24, trials_at_once=3, seed=0, launch="single", own_gpus=False)


def test_every_combination_is_there_once_and_what_is_shared_is_apart() -> None:
    space = parse(["grpo.learning_rate=1e-6,5e-6", "grpo.beta=0", "seed=range(1,4)", "data.languages=[en,th]"])
    assert space.fixed == ("grpo.beta=0", "data.languages=[en,th]")
    expected = product(["grpo.learning_rate=1e-06", "grpo.learning_rate=5e-06"], ["seed=1", "seed=2", "seed=3"])
    assert space.combinations("grid") == list(expected)


def test_without_anything_that_varies_there_is_one_job() -> None:
    assert parse(["seed=1"]).combinations("grid") == [()]


def test_hydras_grammar_holds() -> None:
    assert parse(["reward=glob([p*,j1])"]).combinations("grid") == [("reward=j1",), ("reward=paper",)]
    assert parse(["data.path='a,b'"]).combinations("grid") == [()]
    assert parse(["data.languages=[en],[de,th]"]).combinations("grid") == [
        ("data.languages=[en]",),
        ("data.languages=[de,th]",),
    ]
    assert parse(["seed=choice(2,2,3)"]).combinations("grid") == [("seed=2",), ("seed=3",)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=4, unique=True), min_size=1, max_size=3))
def test_there_are_as_many_as_the_product_of_the_values(values: list[list[int]]) -> None:
    space = parse([f"key{i}={','.join(map(str, each))}" for i, each in enumerate(values)])
    expected = {tuple(f"key{i}={v}" for i, v in enumerate(each)) for each in product(*values)}
    assert set(space.combinations("grid")) == expected
    assert len(space.combinations("grid")) == len(expected)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["seed=1,2", "seed=3"], "seed: given 2 times"),
        (["run.name=a,b"], "a sweep has one run.name"),
        (["grpo.beta=interval(0,1)"], "choose sweep=optuna"),
        (["grpo.beta=choice("], "grpo.beta"),
        (["seed=range(3,1)"], r"seed=range\(3,1\): holds no value"),
        (["seed=1,2", "seed=glob(*)"], "seed: given 2 times"),
        (["grpo.beta=glob(*)"], "holds no value"),
    ],
)
def test_what_cannot_vary_is_said(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(overrides).combinations("grid")


def test_of_an_interval_the_ends_are_tried_before_anything_runs() -> None:
    space = parse(["grpo.beta=interval(0,0.5)", "seed=int(interval(1,8))"])
    assert space.combinations("optuna")[0] == ("grpo.beta=0.0", "seed=1")
    assert space.combinations("optuna")[-1] == ("grpo.beta=0.5", "seed=8")


def _proposed(space_of: list[str]) -> list[tuple[Combination, float | None]]:
    """What optuna proposes where the best is near x = 1e-4 and kind = b, and every run with kind = c fails."""
    seen: list[tuple[Combination, float | None]] = []

    def run(combinations: list[Combination]) -> list[float | None]:
        assert len(combinations) == 3
        scores = []
        for combination in combinations:
            values = dict(text.split("=") for text in combination)
            near = -abs(float(values["x"]) - 1e-4) * 1e4 + (values["kind"] == "b")
            scores.append(None if values["kind"] == "c" else near)
        seen.extend(zip(combinations, scores, strict=True))
        return scores

    suggest(parse(space_of), TRIALS, run)
    return seen


def test_optuna_goes_where_the_best_is_and_past_what_fails() -> None:
    found = _proposed(["x=tag(log,interval(1e-6,1e-2))", "kind=a,b,c"])
    assert len(found) == TRIALS.num_trials
    assert all(1e-6 <= float(combination[0].removeprefix("x=")) <= 1e-2 for combination, _ in found)
    first, last = found[:12], found[12:]
    assert sum("kind=b" in combination for combination, _ in last) > sum("kind=b" in c for c, _ in first)
    assert max(score for _, score in found if score is not None) > 0.5


def test_the_same_results_give_the_same_proposals_so_that_a_sweep_can_go_on() -> None:
    overrides = ["x=tag(log,interval(1e-6,1e-2))", "kind=a,b,c"]
    assert _proposed(overrides) == _proposed(overrides)


def test_a_search_ends_where_its_sweep_is_to_stop() -> None:
    asked: list[int] = []
    suggest(parse(["kind=a,b"]), TRIALS, lambda combinations: asked.append(len(combinations)))
    assert asked == [3]

"""Overrides with several values: the combinations they give, and what optuna proposes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from think_as_locals.sweeps.space import Combination, parse, suggest
from think_as_locals.types import ConfigError

TRIALS, AT_ONCE = 24, 3
LEARNING_RATES, SEEDS = ["grpo.learning_rate=1e-06", "grpo.learning_rate=5e-06"], ["seed=1", "seed=2", "seed=3"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=1"], [()]),
        (["grpo.learning_rate=1e-6,5e-6", "seed=range(1,4)", "grpo.beta=0"], list(product(LEARNING_RATES, SEEDS))),
        (["reward=glob([p*,j1])"], [("reward=j1",), ("reward=paper",)]),
        (["data.path='a,b'"], [()]),
        (["data.languages=[en],[de,th]"], [("data.languages=[en]",), ("data.languages=[de,th]",)]),
        (["seed=choice(2,2,3)"], [("seed=2",), ("seed=3",)]),
    ],
)
def test_combinations_follow_hydras_grammar(overrides: list[str], expected: list[Combination]) -> None:
    assert parse(overrides).combinations("grid") == expected


def test_overrides_with_one_value_are_shared_by_all_jobs() -> None:
    assert parse(["seed=1,2", "grpo.beta=0", "data.languages=[en,th]"]).fixed == (
        "grpo.beta=0",
        "data.languages=[en,th]",
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=4, unique=True), min_size=1, max_size=3))
def test_there_are_as_many_combinations_as_the_product_of_the_values(values: list[list[int]]) -> None:
    space = parse([f"key{i}={','.join(map(str, each))}" for i, each in enumerate(values)])
    expected = {tuple(f"key{i}={v}" for i, v in enumerate(each)) for each in product(*values)}
    assert set(space.combinations("grid")) == expected
    assert len(space.combinations("grid")) == len(expected)


@pytest.mark.parametrize(
    ("overrides", "message"),
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
def test_what_cannot_vary_is_an_error(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(overrides).combinations("grid")


def test_the_ends_of_an_interval_are_validated_before_anything_runs() -> None:
    space = parse(["grpo.beta=interval(0,0.5)", "seed=int(interval(1,8))"])
    assert space.combinations("optuna")[0] == ("grpo.beta=0.0", "seed=1")
    assert space.combinations("optuna")[-1] == ("grpo.beta=0.5", "seed=8")


def _proposed() -> list[tuple[Combination, float | None]]:
    """Return proposals and scores where the best is near x = 1e-4 and kind = b, and every run with kind = c fails."""
    seen: list[tuple[Combination, float | None]] = []

    def run(combinations: list[Combination]) -> list[float | None]:
        assert len(combinations) == AT_ONCE
        scores = []
        for combination in combinations:
            values = dict(text.split("=") for text in combination)
            near = -abs(float(values["x"]) - 1e-4) * 1e4 + (values["kind"] == "b")
            scores.append(None if values["kind"] == "c" else near)
        seen.extend(zip(combinations, scores, strict=True))
        return scores

    suggest(parse(["x=tag(log,interval(1e-6,1e-2))", "kind=a,b,c"]), run, TRIALS, AT_ONCE, seed=0)
    return seen


def test_optuna_approaches_the_best_despite_failures_and_repeats_its_proposals() -> None:
    found = _proposed()
    assert len(found) == TRIALS
    assert all(1e-6 <= float(combination[0].removeprefix("x=")) <= 1e-2 for combination, _ in found)
    first, last = found[:12], found[12:]
    assert sum("kind=b" in combination for combination, _ in last) > sum("kind=b" in c for c, _ in first)
    assert max(score for _, score in found if score is not None) > 0.5
    assert _proposed() == found  # so that a sweep can continue


def test_a_search_ends_where_its_sweep_is_to_stop() -> None:
    asked: list[int] = []
    suggest(parse(["kind=a,b"]), lambda combinations: asked.append(len(combinations)), TRIALS, AT_ONCE, seed=0)
    assert asked == [AT_ONCE]

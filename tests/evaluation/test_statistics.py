"""Accuracy and its interval: against closed forms, known values and simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from think_as_locals.evaluation.statistics import MIN_CLUSTERS, Accuracy, accuracy

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def half_width(measured: Accuracy) -> float:
    return (measured.ci95[1] - measured.ci95[0]) / 2


def clustered(rng: np.random.Generator, count: int) -> tuple[list[float], list[str]]:
    """Question groups of 1 to 12 items whose difficulty varies from group to group; half of the answers are right."""
    scores: list[float] = []
    groups: list[str] = []
    for group in range(count):
        size = int(rng.integers(1, 13))
        scores += (rng.random(size) < rng.beta(2, 2)).astype(float).tolist()
        groups += [f"g{group}"] * size
    return scores, groups


# --- the bootstrap over question groups ---


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_with_one_item_in_each_group_the_interval_is_the_binomial_one(share: float) -> None:
    n = 800
    right = round(share * n)
    measured = accuracy([1.0] * right + [0.0] * (n - right), [str(i) for i in range(n)], samples=3000)
    assert (measured.n, measured.accuracy, measured.interval) == (n, pytest.approx(share), "cluster_bootstrap")
    expected = 1.96 * math.sqrt(share * (1 - share) / n)
    assert half_width(measured) == pytest.approx(expected, rel=0.08)
    assert sum(measured.ci95) / 2 == pytest.approx(share, abs=expected / 5)


def test_items_that_repeat_their_group_add_no_certainty() -> None:
    groups = [str(i) for i in range(400)]
    scores = [float(i % 2) for i in range(400)]
    once = accuracy(scores, groups, samples=3000)
    tenfold = accuracy([s for s in scores for _ in range(10)], [g for g in groups for _ in range(10)], samples=3000)
    assert tenfold.n == 4000
    assert half_width(tenfold) == pytest.approx(half_width(once), rel=0.05)
    assert half_width(tenfold) > 3 * 1.96 * math.sqrt(0.25 / 4000)


def test_with_groups_of_unequal_size_the_interval_is_that_of_a_ratio_of_means() -> None:
    scores, groups = clustered(np.random.default_rng(1), 300)
    measured = accuracy(scores, groups, samples=3000)
    residuals: dict[str, float] = {}
    for score, group in zip(scores, groups, strict=True):
        residuals[group] = residuals.get(group, 0.0) + score - measured.accuracy
    deviation = math.sqrt(sum(value**2 for value in residuals.values())) / len(scores)
    assert half_width(measured) == pytest.approx(1.96 * deviation, rel=0.08)


def test_every_item_counts_the_same_whatever_the_size_of_its_group() -> None:
    # Twenty groups of nine right answers, twenty of a single wrong one.
    groups = [str(i) for i in range(20) for _ in range(9)] + [f"small {i}" for i in range(20)]
    measured = accuracy([1.0] * 180 + [0.0] * 20, groups)
    low, high = measured.ci95
    assert 0.7 < low < measured.accuracy == 0.9 < high


def coverage(intervals: Sequence[Accuracy], truth: float) -> float:
    return sum(m.ci95[0] <= truth <= m.ci95[1] for m in intervals) / len(intervals)


def test_intervals_of_clustered_data_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    data = [clustered(rng, 40) for _ in range(150)]
    by_group = [accuracy(scores, groups, samples=300, seed=i) for i, (scores, groups) in enumerate(data)]
    # What taking items for independent would claim.
    by_item = [
        accuracy(scores, [str(j) for j in range(len(scores))], samples=300, seed=i)
        for i, (scores, _) in enumerate(data)
    ]
    assert 0.87 < coverage(by_group, 0.5) < 0.99
    assert coverage(by_item, 0.5) < coverage(by_group, 0.5) - 0.05


# --- Wilson's interval over items, where groups are few ---


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 2, 0.0945, 0.9055),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_with_few_groups_it_is_wilsons_interval(right: int, n: int, low: float, high: float) -> None:
    measured = accuracy([1.0] * right + [0.0] * (n - right), ["one"] * n)
    assert (measured.n, measured.accuracy, measured.interval) == (n, right / n, "wilson")
    assert measured.ci95 == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("groups", "interval"), [(1, "wilson"), (4, "wilson"), (5, "cluster_bootstrap"), (6, "cluster_bootstrap")]
)
def test_five_groups_are_enough_for_the_bootstrap(groups: int, interval: str) -> None:
    assert MIN_CLUSTERS == 5
    labels = [str(i % groups) for i in range(60)]
    assert accuracy([float(i % 3 == 0) for i in range(60)], labels).interval == interval


def test_a_single_item_has_a_wide_interval() -> None:
    measured = accuracy([1.0], ["a"])
    assert measured.accuracy == 1.0
    assert half_width(measured) > 0.35


# --- what holds of any ---


@quick
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(0, 5),
)
def test_intervals_lie_in_0_to_1_and_hold_the_accuracy(rows: list[tuple[float, int]], seed: int) -> None:
    scores, groups = [score for score, _ in rows], [str(group) for _, group in rows]
    measured = accuracy(scores, groups, samples=500, seed=seed)
    assert measured.n == len(rows)
    assert measured.accuracy == pytest.approx(sum(scores) / len(scores))
    low, high = measured.ci95
    assert -1e-9 <= low <= high <= 1 + 1e-9
    assert low - 0.05 <= measured.accuracy <= high + 0.05
    assert measured == accuracy(scores, groups, samples=500, seed=seed)


def test_the_seed_changes_the_interval_only_a_little_and_the_accuracy_not_at_all() -> None:
    scores, groups = clustered(np.random.default_rng(2), 100)
    several = [accuracy(scores, groups, samples=2000, seed=seed) for seed in range(5)]
    assert len({m.accuracy for m in several}) == 1
    assert len({m.ci95 for m in several}) > 1
    widths = [half_width(m) for m in several]
    assert max(widths) < 1.15 * min(widths)


def test_it_can_be_written_as_json() -> None:
    written = accuracy([1.0, 0.0], ["a", "b"]).as_dict()
    assert set(written) == {"n", "accuracy", "ci95", "interval"}
    assert isinstance(written["ci95"], list)


def test_no_items_are_an_error() -> None:
    with pytest.raises(ValueError, match="no items"):
        accuracy([], [])


@pytest.mark.parametrize(("scores", "groups"), [([1.0], []), ([1.0, 0.0], ["a"]), ([1.0], ["a", "b"])])
def test_scores_without_their_groups_are_an_error(scores: list[float], groups: list[str]) -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        accuracy(scores, groups)

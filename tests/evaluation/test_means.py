"""Means of any values: intervals against scipy, and what there is where they say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from think_as_locals.evaluation.means import estimate_mean
from think_as_locals.evaluation.statistics import accuracy, macro


def test_with_many_groups_it_is_the_interval_of_an_accuracy() -> None:
    rng = np.random.default_rng(0)
    values, groups = rng.random(60), [str(i // 4) for i in range(60)]
    found, known = estimate_mean(values, groups, 500, 0), accuracy(values, groups, 500, 0)
    assert found.mean == pytest.approx(known.accuracy)
    assert (found.n, found.ci95, found.interval) == (60, known.ci95, "cluster_bootstrap")


def test_it_moves_and_stretches_with_the_values() -> None:
    rng = np.random.default_rng(1)
    values, groups = rng.normal(size=60), [str(i // 4) for i in range(60)]
    found, other = estimate_mean(values, groups, 500, 0), estimate_mean(-300 * values + 7, groups, 500, 0)
    assert found.mean is not None
    assert found.ci95 is not None
    assert other.mean == pytest.approx(-300 * found.mean + 7)
    assert other.ci95 == pytest.approx((-300 * found.ci95[1] + 7, -300 * found.ci95[0] + 7), rel=0.15)


def test_few_groups_have_students_interval_of_their_means() -> None:
    values = np.array([1.0, 3.0, 10.0, 12.0, -4.0, -2.0])
    found = estimate_mean(values, list("aabbcc"), 500, 0)
    means = values.reshape(3, 2).mean(axis=1)
    assert found.interval == "cluster_t"
    assert found.ci95 == pytest.approx(stats.t.interval(0.95, 2, means.mean(), stats.sem(means)))


def test_a_single_group_has_students_interval_of_its_items() -> None:
    values = [1.0, 3.0, 10.0, 12.0]
    found = estimate_mean(values, ["a"] * 4, 500, 0)
    assert found.interval == "t"
    assert found.ci95 == pytest.approx(stats.t.interval(0.95, 3, np.mean(values), stats.sem(values)))


def test_values_that_are_all_alike_have_an_interval_without_width() -> None:
    found = estimate_mean([2.0] * 30, [str(i) for i in range(30)], 500, 0)
    assert (found.mean, found.ci95) == (2.0, (2.0, 2.0))


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert estimate_mean([5.0], ["a"], 500, 0).as_dict() == {"n": 1, "mean": 5.0, "ci95": None, "interval": "none"}
    assert estimate_mean([], [], 500, 0).as_dict() == {"n": 0, "mean": None, "ci95": None, "interval": "none"}


def test_over_cells_it_is_the_mean_of_their_means() -> None:
    values, cells = [1.0, 2.0, 3.0, 10.0], ["TH", "TH", "TH", "JP"]
    assert estimate_mean(values, list("abcd"), 500, 0, cells).mean == 6.0
    assert estimate_mean(values, list("abcd"), 500, 0).mean == 4.0


def test_over_cells_it_has_the_interval_of_the_accuracy_over_cells() -> None:
    rng = np.random.default_rng(2)
    values, groups = rng.random(80), [str(i // 4) for i in range(80)]
    cells = ["TH" if i < 60 else "JP" for i in range(80)]
    found, known = estimate_mean(values, groups, 500, 0, cells), macro(values, groups, cells, 500, 0)
    assert found.mean == pytest.approx(known.accuracy)
    assert (found.n, found.ci95, found.interval) == (80, known.ci95, "cluster_bootstrap")
    assert found.ci95 != estimate_mean(values, groups, 500, 0).ci95


def test_few_groups_in_cells_have_students_interval_of_the_means_without_each_group() -> None:
    values, groups, cells = [1.0, 3.0, 10.0, 14.0], list("abcd"), ["TH", "TH", "JP", "JP"]
    found = estimate_mean(values, groups, 500, 0, cells)
    # Without a group its cell's mean is the other's value: the mean of both cells moves by 1/2, 1/2, 1 and 1.
    error = np.sqrt(3 / 4 * (0.5**2 + 0.5**2 + 1**2 + 1**2))
    assert found.interval == "cluster_t"
    assert found.mean == 7.0
    assert found.ci95 == pytest.approx((7 - stats.t.ppf(0.975, 3) * error, 7 + stats.t.ppf(0.975, 3) * error))


def test_one_cell_is_no_cells() -> None:
    values, groups = np.random.default_rng(3).random(40), [str(i // 4) for i in range(40)]
    assert estimate_mean(values, groups, 300, 0, ["TH"] * 40) == estimate_mean(values, groups, 300, 0)


def test_no_end_of_the_interval_is_beyond_what_a_value_can_be() -> None:
    values, groups = [0.0, 0.9, 1.0], ["a", "b", "c"]
    low, high = estimate_mean(values, groups, samples=50, seed=0).ci95 or (0, 0)
    assert low < 0 < 1 < high
    assert estimate_mean(values, groups, samples=50, seed=0, bounds=(0, 1)).ci95 == (0, 1)

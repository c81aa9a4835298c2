"""Estimates, and differences of runs: closed forms, statsmodels, loops and simulation."""

from __future__ import annotations

import math
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr
from statsmodels.stats.proportion import proportion_confint

from think_as_locals.evaluation import statistics
from think_as_locals.evaluation.statistics import (
    Estimate,
    accuracy,
    difference,
    estimate_mean,
    holm,
    min_detectable_effect,
)

CREDITS = st.sampled_from([0.0, 1 / 3, 0.5, 1.0])
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def half_width(measured: Estimate) -> float:
    return (measured.ci95[1] - measured.ci95[0]) / 2


def clustered(rng: np.random.Generator, count: int, share: float = 0.5) -> tuple[list[float], list[str]]:
    """Question groups of 1 to 12 items whose difficulty varies from group to group; a share of answers is right."""
    scores, groups = list[float](), list[str]()
    for group in range(count):
        size = int(rng.integers(1, 13))
        scores += (rng.random(size) < rng.beta(4 * share, 4 - 4 * share)).astype(float).tolist()
        groups += [f"g{group}"] * size
    return scores, groups


# --- the interval over question groups ---


def test_groups_of_alike_or_repeated_items_do_not_narrow_the_interval() -> None:
    groups, scores = [str(i) for i in range(400)], [float(i % 2) for i in range(400)]
    once, tenfold = accuracy(scores, groups), accuracy(scores * 10, groups * 10)
    assert half_width(tenfold) == pytest.approx(half_width(once), rel=0.05)
    scores, groups = [1.0, 0.0] * 20, [str(i // 8) for i in range(40)]
    assert accuracy(scores, groups).method == "cluster_wilson"
    assert half_width(accuracy(scores, groups)) >= half_width(accuracy(scores, [str(i) for i in range(40)]))


def coverage(intervals: Sequence[Estimate], truth: float) -> float:
    return sum(m.ci95[0] <= truth <= m.ci95[1] for m in intervals) / len(intervals)


@pytest.mark.parametrize(
    ("groups", "cells", "share"), [(5, 1, 0.7), (8, 1, 0.9), (10, 1, 0.5), (12, 5, 0.9), (25, 1, 0.9)]
)
def test_clustered_interval_has_nominal_coverage(groups: int, cells: int, share: float) -> None:
    rng = np.random.default_rng(groups)
    data = [clustered(rng, groups, share) for _ in range(400)]
    # A bootstrap holds it in 88 to 92 %, with plain percentiles in 84 %.
    two_cells = [["x" if i % cells else "y" for i in range(len(scores))] for scores, _ in data]
    found = [accuracy(*one, cells=cell) for one, cell in zip(data, two_cells, strict=True)]
    assert 0.925 < coverage(found, share) < 0.99
    by_item = [accuracy(scores, ["one"] * len(scores)) for scores, _ in data]
    assert coverage(by_item, share) < 0.9


def bootstrap_by_loop(scores: list[float], groups: list[str], cells: list[str], seed: int) -> tuple[float, float]:
    """The expanded percentiles, group by group and item by item, on draws of their own."""
    rng, means, by_group = np.random.default_rng(seed), [], defaultdict[str, list[tuple[float, str]]](list)
    for score, group, cell in zip(scores, groups, cells, strict=True):
        by_group[group].append((score, cell))
    names = sorted(by_group)
    for _ in range(2000):
        drawn = defaultdict[str, list[float]](list)
        for name in rng.choice(names, len(names)):
            for score, cell in by_group[name]:
                drawn[cell].append(score)
        means.append(np.mean([np.mean(of_cell) for of_cell in drawn.values()]))
    spread = stats.t.ppf(0.025, len(names) - 1) * math.sqrt(len(names) / (len(names) - 1))
    return tuple(np.quantile(means, [stats.norm.cdf(spread), stats.norm.cdf(-spread)]))


def test_cluster_bootstrap_matches_a_loop_over_drawn_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_FEW_IN_CELL", 2)
    scores, groups = clustered(np.random.default_rng(5), 60)
    ascending, names, pairs = [i / 60 for i in range(60)], [str(i) for i in range(60)], [str(i // 2) for i in range(60)]
    for *data, near in (
        (scores, groups, ["one"] * len(scores), 0.015),
        (scores, groups, [str(int(group[1:]) % 3) for group in groups], 0.015),
        (ascending, names, pairs, 0.005),  # cells of which one item is drawn
    ):
        found = accuracy(data[0], data[1], samples=20_000, cells=data[2])
        assert found.method == "cluster_bootstrap"
        assert found.ci95 == pytest.approx(bootstrap_by_loop(*data, seed=1), abs=near)


def test_interval_depends_on_seed_but_not_on_item_order() -> None:
    rng = np.random.default_rng(5)
    scores, groups = clustered(rng, 60)
    mixed = rng.permutation(len(scores))
    first, other = (accuracy(scores, groups, seed=seed).ci95 for seed in (0, 1))
    assert first == accuracy([scores[i] for i in mixed], [groups[i] for i in mixed]).ci95 != other
    assert first == pytest.approx(other, abs=0.015)


def test_merging_groups_beyond_the_limit_keeps_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, groups = clustered(np.random.default_rng(3), 2000)
    alone = accuracy(scores, groups)
    monkeypatch.setattr(statistics, "_MAX_GROUPS", 200)
    together = accuracy(scores, groups)
    assert (together.method, together.value) == (alone.method, alone.value)
    assert half_width(together) == pytest.approx(half_width(alone), rel=0.15)


def test_draws_of_many_groups_are_stored_as_bytes() -> None:
    groups, samples = 20_000, 400
    scores, names = [float(i % 3 == 0) for i in range(groups)], [f"{i:05}" for i in range(groups)]
    shares = np.full(groups, 1 / groups)
    drawn = np.random.default_rng(7).multinomial(groups, shares, size=samples) @ np.array(scores) / groups
    tracemalloc.start()
    found = accuracy(scores, names, samples, seed=7)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tail = ndtr(stats.t.ppf(0.025, groups - 1) * math.sqrt(groups / (groups - 1)))
    assert found.ci95 == pytest.approx(tuple(np.quantile(drawn, [tail, 1 - tail])), abs=1e-12)
    assert peak < 100e6  # as numbers of eight bytes, once drawn and once converted, they take 128 MB


# --- Wilson's interval by group, where a bootstrap says nothing ---


def regression(values: np.ndarray, groups: np.ndarray) -> Any:
    """A mean with the cluster-robust variance of statsmodels."""
    kinds = {"groups": groups}
    return sm.OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds=kinds, use_t=True)


def wilson(mean: float, variance: float, groups: int) -> tuple[float, float]:
    """Of as many independent items as have that variance, with Student's quantile in place of the normal one."""
    n = mean * (1 - mean) / variance
    alpha = 2 * float(stats.norm.sf(stats.t.ppf(0.975, groups - 1)))
    low, high = proportion_confint(mean * n, n, alpha, method="wilson")
    return low, high


def test_variance_of_equal_groups_matches_statsmodels() -> None:
    scores = (np.random.default_rng(5).random((4, 8)) < np.linspace(0.2, 0.9, 4)[:, None]).astype(float).ravel()
    names = np.arange(4).repeat(8)
    expected = wilson(scores.mean(), float(regression(scores, names).bse[0]) ** 2, 4)
    assert accuracy(scores, names.astype(str)).ci95 == pytest.approx(expected)


@pytest.mark.parametrize("cells", [1, 2])
def test_cluster_wilson_variance_is_the_jackknife_variance(cells: int) -> None:
    scores, groups = clustered(np.random.default_rng(5), 4)
    cell = [str(i % cells) for i in range(len(scores))]
    measured, left = accuracy(scores, groups, cells=cell), []
    for gone in set(groups):
        rows = [row for row in zip(scores, groups, cell, strict=True) if row[1] != gone]
        scores_left, groups_left, cells_left = zip(*rows, strict=True)
        left.append(accuracy(scores_left, groups_left, cells=cells_left).value)
    variance = 3 / 4 * sum((value - measured.value) ** 2 for value in left)
    assert measured.ci95 == pytest.approx(wilson(measured.value, variance, 4))


# --- Wilson's interval over items, of a single group ---


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        *((8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)),
        *((1, 1, 0.2065, 1.0), (1, 2, 0.0945, 0.9055), (50, 100, 0.4038, 0.5962)),
    ],
)
def test_interval_of_a_single_group_is_wilson(right: int, n: int, low: float, high: float) -> None:
    measured = accuracy([1.0] * right + [0.0] * (n - right), ["one"] * n)
    assert (measured.n, measured.value, measured.method) == (n, right / n, "wilson")
    assert measured.ci95 == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("groups", "method"), [(1, "wilson"), *((n, "cluster_wilson") for n in (2, 3, 8, 49)), (50, "cluster_bootstrap")]
)
def test_number_of_groups_chooses_the_method_of_which_the_bootstrap_alone_has_a_seed(groups: int, method: str) -> None:
    labels = [str(i % groups) for i in range(60)]
    found = [accuracy([float(i < 20) for i in range(59)] + [1.0], labels, seed=seed) for seed in range(5)]
    assert {each.method for each in found} == {method}
    assert (len({each.ci95 for each in found}) > 1) == (method == "cluster_bootstrap")


def test_interval_of_constant_scores_has_width() -> None:
    for score in (0.0, 0.2, 0.25, 1 / 3, 1.0):  # sums of some of which are rounded
        assert half_width(accuracy([score] * 40, [str(i // 2) for i in range(40)])) > 0.025


@quick
@given(st.lists(st.tuples(CREDITS, st.integers(0, 9), st.sampled_from("uvw")), min_size=1, max_size=60))
def test_accuracy_interval_is_in_0_to_1_and_contains_the_mean(rows: list[tuple[float, int, str]]) -> None:
    scores, groups, cells = [row[0] for row in rows], [str(row[1]) for row in rows], [row[2] for row in rows]
    by_cell = np.mean([np.mean([row[0] for row in rows if row[2] == cell]) for cell in set(cells)])
    for of_cells, expected in ((["one"] * len(rows), np.mean(scores)), (cells, by_cell)):
        measured = accuracy(scores, groups, cells=of_cells)
        turned = accuracy(scores[::-1], groups[::-1], cells=of_cells[::-1])
        assert measured.n == len(rows)
        assert measured.value == pytest.approx(expected)
        low, high = measured.ci95
        assert -1e-9 <= low <= measured.value + 1e-9 <= high + 2e-9 <= 1 + 3e-9
        assert (turned.value, *turned.ci95) == pytest.approx((measured.value, low, high))
        assert turned.method == measured.method


@pytest.mark.parametrize(
    ("measure", "columns", "message"),
    [
        *((accuracy, ([], []), "no items"), (difference, ([], [], []), "no items")),
        *((accuracy, columns, "a group and a cell for each") for columns in (([1], []), ([1, 0], "a"), ([1], "ab"))),
        (statistics.accuracies, ([[1, 0], [1]], "ab", 200, 0), "as many scores in each column"),
    ],
)
def test_missing_or_mismatched_columns_raise(measure: Callable[..., Any], columns: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(*columns)


# --- credit, and the mean over cells ---


def test_cell_empty_in_a_resample_is_left_out_of_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_FEW_IN_CELL", 2)
    # Without "few" a resample's mean is that of the others, 1; with it 1/2.
    groups = [str(i) for i in range(60)]
    measured = accuracy([1.0] * 58 + [0.0] * 2, groups, cells=["many"] * 58 + ["few"] * 2)
    assert (measured.value, measured.ci95, measured.method) == (0.5, (0.5, 1.0), "cluster_bootstrap")


@pytest.mark.parametrize("many", [10, 60])
def test_cell_of_a_single_group_keeps_a_wide_interval(many: int) -> None:
    n = 4 * many
    scores = [float(i % 2) for i in range(n)] + [1.0, 1.0, 1.0, 1.0]
    groups, cells = [str(i // 4) for i in range(n)] + ["alone"] * 4, ["many"] * n + ["lonely"] * 4
    found = accuracy(scores, groups, cells=cells)
    assert (found.value, found.method) == (0.75, "cluster_wilson")
    assert half_width(found) > 0.2


@pytest.mark.parametrize(("sizes", "share"), [([100, 100, 100, 3], 0.7), ([60, 3, 3, 3], 0.9), ([1, 1, 9, 9], 0.5)])
def test_macro_interval_with_small_cells_contains_the_truth(sizes: list[int], share: float) -> None:
    rng, n, cells = np.random.default_rng(1), sum(sizes), [str(i) for i, size in enumerate(sizes) for _ in range(size)]
    names = [str(i) for i in range(n)]
    found = [accuracy((rng.random(n) < share).astype(float), names, 300, cells=cells) for _ in range(300)]
    assert coverage(found, share) > 0.92  # a bootstrap's contains it in 62 to 73 %, the jackknife's in 70 to 95 %
    assert half_width(accuracy([1.0] * n, names, cells=cells)) > 0.04


# --- means of values of any size ---


@pytest.mark.parametrize("cells", [None, ["TH"] * 180 + ["JP"] * 60])
def test_mean_interval_of_many_groups_matches_accuracy(cells: list[str] | None) -> None:
    values, groups = np.random.default_rng(2).random(240), [str(i // 4) for i in range(240)]
    found, known = estimate_mean(values, groups, 500, 0, cells), accuracy(values, groups, 500, 0, cells)
    assert found.value == pytest.approx(known.value)
    assert (found.n, found.ci95, found.method) == (240, known.ci95, "cluster_bootstrap")


def test_mean_interval_scales_with_the_values_within_bounds() -> None:
    rng = np.random.default_rng(1)
    values, groups = rng.normal(size=60), [str(i // 4) for i in range(60)]
    found, other = estimate_mean(values, groups, 500, 0), estimate_mean(-300 * values + 7, groups, 500, 0)
    assert other.value == pytest.approx(-300 * found.value + 7)
    assert other.ci95 == pytest.approx((-300 * found.ci95[1] + 7, -300 * found.ci95[0] + 7), rel=0.15)
    found = estimate_mean([2.0] * 30, [str(i) for i in range(30)], 500, 0)
    assert (found.value, found.ci95) == (2.0, (2.0, 2.0))
    values, groups = [0.0, 0.9, 1.0], ["a", "b", "c"]
    low, high = estimate_mean(values, groups, samples=50, seed=0).ci95
    assert low < 0 < 1 < high
    assert estimate_mean(values, groups, samples=50, seed=0, bounds=(0, 1)).ci95 == (0, 1)


@pytest.mark.parametrize(
    ("groups", "size", "method"), [("aabbcc", 2, "cluster_t"), ("aaabbb", 3, "cluster_t"), ("aaaaaa", 1, "t")]
)
def test_mean_interval_of_few_groups_is_students_t(groups: str, size: int, method: str) -> None:
    values = np.array([1.0, 3.0, 10.0, 12.0, -4.0, -2.0])
    found, means = estimate_mean(values, list(groups), 500, 0), values.reshape(-1, size).mean(axis=1)
    assert found.method == method
    assert found.ci95 == pytest.approx(stats.t.interval(0.95, len(means) - 1, means.mean(), stats.sem(means)))


@pytest.mark.parametrize("values", [[], [5.0]])
def test_interval_is_none_for_one_value_and_mean_is_none_for_none(values: list[float]) -> None:
    found = estimate_mean(values, ["a"] * len(values), 500, 0).as_dict("mean")
    assert found == {"n": len(values), "mean": values[0] if values else None, "ci95": None, "ci_method": "none"}


def test_macro_mean_interval_of_few_groups_is_students_t_of_jackknife() -> None:
    values, groups, cells = [1.0, 3.0, 10.0, 14.0], list("abcd"), ["TH", "TH", "JP", "JP"]
    found = estimate_mean(values, groups, 500, 0, cells)
    # Without a group its cell's mean is the other's value: the mean of both cells moves by 1/2, 1/2, 1 and 1.
    error = np.sqrt(3 / 4 * (0.5**2 + 0.5**2 + 1**2 + 1**2))
    assert (found.value, found.method) == (7.0, "cluster_t")
    assert found.ci95 == pytest.approx(stats.t.interval(0.95, 3, 7, error))


# --- differences of two runs ---

Run = tuple[list[float], list[float], list[str]]

PAIRS = st.lists(st.tuples(CREDITS, CREDITS, st.sampled_from("abcdefgh")), min_size=1, max_size=40)


def runs(rng: np.random.Generator, groups: int, a: float, b: float, spread: float = 4.0) -> Run:
    """Two runs that find the same groups difficult and agree on most items."""
    first, second, names = list[float](), list[float](), list[str]()
    for group in range(groups):
        size = int(rng.integers(1, 13))
        ease = (rng.beta(spread * p, spread * (1 - p)) for p in (a, b))
        luck = rng.random(size)
        other = np.where(rng.random(size) < 0.6, luck, rng.random(size))
        for values, draws, p in zip((first, second), (luck, other), ease, strict=True):
            values += (draws < p).astype(float).tolist()
        names += [str(group)] * size
    return first, second, names


@pytest.mark.parametrize(("groups", "size", "method"), [(100, 8, "cluster_bootstrap"), (4, 16, "cluster_t")])
def test_difference_of_equal_groups_matches_statsmodels(groups: int, size: int, method: str) -> None:
    rng, names = np.random.default_rng(1), np.arange(groups).repeat(size)
    a, b = (rng.random((2, groups * size)) < rng.beta(1, 1, (2, groups)).repeat(size, axis=1)).astype(float)
    found, fit = difference(a, b, names.astype(str)), regression(b - a, names)
    assert (found.n, found.a, found.b) == (len(a), pytest.approx(a.mean()), pytest.approx(b.mean()))
    assert found.method == method
    assert found.value == pytest.approx(fit.params[0])
    expected = tuple(np.clip(fit.conf_int()[0], -1, 1))
    assert found.ci95 == pytest.approx(expected, abs=0.02 if method == "cluster_bootstrap" else 1e-9)
    assert found.p == pytest.approx(fit.pvalues[0])


def test_difference_resamples_both_runs_together() -> None:
    a, b, groups = runs(np.random.default_rng(4), 60, 0.4, 0.5, spread=1.0)
    found = difference(a, b, groups)
    gains = accuracy((np.subtract(b, a) + 1) / 2, groups)  # of each item, moved to [0, 1]
    assert found.method == gains.method == "cluster_bootstrap"
    assert found.ci95 == pytest.approx(tuple(2 * end - 1 for end in gains.ci95))


def test_difference_of_few_items_has_agresti_and_mins_interval() -> None:
    a, b = [1.0] * 30 + [0.0] * 70, [1.0] * 50 + [0.0] * 50
    found = difference(a, b, ["one"] * 100)
    assert (found.method, found.value) == ("agresti_min", pytest.approx(0.2))
    variance = (20 + 1 - 20**2 / 102) / 102**2  # Agresti and Min 2005
    assert half_width(found) == pytest.approx(stats.t.ppf(0.975, 99) * math.sqrt(variance))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_few_items_of_one_group_prove_little_and_show_no_effect(n: int) -> None:
    found = difference([0.0] * n, [1.0] * n, ["one"] * n)
    assert (found.p < 0.05) == (n > 4)
    assert (found.ci95 == (-1, 1)) == (n < 3)
    assert n > 1 or found.p == 1
    assert (min_detectable_effect([1.0] * n, [0.0] * n, ["a"] * n) is None) == (n < 4)


def test_identical_runs_have_a_nonzero_interval() -> None:
    few, many = (difference([1.0] * n, [1.0] * n, [str(i) for i in range(n)]) for n in (10, 1000))
    assert (few.value, few.p) == (0, 1)
    assert half_width(few) > 0.15
    assert 0 < half_width(many) < 0.003


@pytest.mark.parametrize("groups", [5, 10, 25])
def test_difference_interval_has_nominal_coverage(groups: int) -> None:
    rng = np.random.default_rng(groups)
    found = [difference(*runs(rng, groups, 0.5, 0.6), samples=500) for _ in range(300)]
    assert 0.92 < coverage(found, 0.1) < 0.99


@quick
@given(PAIRS)
def test_difference_is_antisymmetric_and_independent_of_item_order(rows: list[tuple[float, float, str]]) -> None:
    a, b, groups = (list(column) for column in zip(*rows, strict=True))
    there, back = difference(a, b, groups), difference(b, a, groups)
    assert there.value == pytest.approx(-back.value)
    assert there.ci95 == pytest.approx((-back.ci95[1], -back.ci95[0]))
    assert there.p == pytest.approx(back.p)
    assert min_detectable_effect(a, b, groups) == pytest.approx(min_detectable_effect(b, a, groups))
    assert difference(a[::-1], b[::-1], groups[::-1]).ci95 == pytest.approx(there.ci95)
    assert -1 <= there.ci95[0] <= there.value + 1e-9 <= there.ci95[1] + 2e-9 <= 1 + 2e-9
    assert 0 <= there.p <= 1


def test_macro_difference_weights_cells_equally() -> None:
    found = difference([0, 0, 0, 1], [1, 1, 1, 1], list("abcd"), cells=["TH", "TH", "TH", "JP"])
    assert (found.a, found.b, found.value) == (0.5, 1.0, 0.5)
    assert difference([0, 0, 0, 1], [1, 1, 1, 1], list("abcd")).value == 0.75
    rng = np.random.default_rng(8)
    a, b = (rng.random((2, 60)) < [[0.4], [0.6]]).astype(float)
    groups, cells = [str(i // 3) for i in range(60)], ["x", "y", "z"] * 20
    whole, over = difference(a, b, groups), difference(a, b, groups, cells=cells)
    assert (over.value, over.a, over.b) == pytest.approx((whole.value, whole.a, whole.b))
    assert over.ci95 == pytest.approx(whole.ci95)
    assert over.p == pytest.approx(whole.p)


def test_macro_difference_of_a_small_cell_excludes_0_only_with_a_small_p() -> None:
    rng, cells, names = np.random.default_rng(4), ["many"] * 300 + ["few"] * 3, [str(i) for i in range(303)]
    found = []
    for _ in range(300):
        luck = rng.random(303)
        other = np.where(rng.random(303) < 0.6, luck, rng.random(303))
        a, b = (luck < 0.5).astype(float), (other < 0.6).astype(float)
        found.append(difference(a, b, names, samples=300, cells=cells))
    assert coverage(found, 0.1) > 0.92
    assert all(each.p < 0.06 for each in found if not each.ci95[0] <= 0 <= each.ci95[1])


@pytest.mark.parametrize("groups", [8, 20])
def test_macro_difference_has_nominal_coverage_and_error_rate(groups: int) -> None:
    rng, found = np.random.default_rng(groups), []
    for _ in range(300):
        a, b, names = runs(rng, groups, 0.5, 0.5)
        # Three in five groups are of one domain; cultures are as many as a group has items.
        cells = [f"{int(name) * 5 // groups > 2}/{i % 3}" for i, name in enumerate(names)]
        found.append(difference(a, b, names, samples=300, cells=cells))
    assert coverage(found, 0) > 0.9
    assert sum(each.p < 0.05 for each in found) / 300 < 0.09


def test_holm_multiplies_each_p_by_the_remaining_tests() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


# --- what this n can show ---


def test_min_detectable_effect_solves_connors_formula() -> None:
    n = 402
    a = [1.0] * 60 + [0.0] * 40 + [1.0] * (n - 100)
    b = [0.0] * 60 + [1.0] * 40 + [1.0] * (n - 100)
    found = min_detectable_effect(a, b, [str(i) for i in range(n)])
    assert found is not None
    share = (100 + 1) / (n + 2)
    t_alpha, t_beta = stats.t.ppf(0.975, n - 1), stats.t.ppf(0.8, n - 1)
    needed = (t_alpha * math.sqrt(share) + t_beta * math.sqrt(share - found**2)) ** 2 / found**2
    assert needed == pytest.approx(n - 1, rel=5e-4)  # the jackknife's variance is n / (n - 1) times that of items


def test_min_detectable_effect_shrinks_with_n_and_grows_with_power_and_clusters() -> None:
    def of(n: int, **asked: float) -> float:
        a, b = [float(i % 5 == 0) for i in range(n)], [float(i % 5 == 1) for i in range(n)]
        return min_detectable_effect(a, b, [str(i) for i in range(n)], **asked) or math.nan

    assert of(400) == pytest.approx(2 * of(1600), rel=0.03)
    assert of(400, power=0.9) > of(400) > of(400, power=0.5)
    assert of(400, alpha=0.05 / 40) > of(400)
    a, b, groups = runs(np.random.default_rng(3), 12, 0.4, 0.5, spread=1.0)
    alone = min_detectable_effect(a, b, [str(i) for i in range(len(a))])
    together = min_detectable_effect(a, b, groups)
    assert (together or 0) > 1.3 * (alone or 1)


def test_min_detectable_effect_is_detected_with_80_percent_power() -> None:
    rng = np.random.default_rng(11)
    groups = [str(i // 4) for i in range(400)]

    def draw(gain: float) -> tuple[list[float], list[float]]:
        wins = rng.random(400)
        discordant = rng.random(400) < 0.3
        better = discordant & (wins < (1 + gain / 0.3) / 2)
        return (discordant & ~better).astype(float).tolist(), better.astype(float).tolist()

    size = min_detectable_effect(*draw(0.0), groups)
    assert size == pytest.approx(0.077, abs=0.012)
    found = [difference(*draw(size), groups).p < 0.05 for _ in range(300)]
    assert 0.72 < sum(found) / 300 < 0.88


# --- what is drawn once ---


def scores_of(groups: int, seed: int) -> tuple[list[float], list[str]]:
    rng = np.random.default_rng(seed)
    return rng.choice([0, 0.25, 1 / 3, 1], 3 * groups).tolist(), [f"g{i // 3}" for i in range(3 * groups)]


def test_accuracies_match_separate_estimates() -> None:
    (one, groups), (other, _) = scores_of(70, 0), scores_of(70, 1)
    cells = [f"c{i % 2}" for i in range(len(one))]
    for of_cells in (None, cells):
        expected = [accuracy(scores, groups, 200, 0, of_cells) for scores in (one, other)]
        assert statistics.accuracies([one, other], groups, 200, 0, of_cells) == expected


def test_draws_are_cached_by_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    make = np.random.default_rng
    monkeypatch.setattr(statistics, "_draws_kept", {})
    monkeypatch.setattr(statistics.np.random, "default_rng", lambda seed: drawn.append(seed) or make(seed))
    data = [scores_of(groups, seed) for groups, seed in ((60, 0), (80, 1), (60, 2), (80, 3))]
    drawn.clear()
    first = [accuracy(*each, 200, 7) for each in data]
    assert drawn == [7, 7]
    monkeypatch.setattr(statistics, "_MAX_CACHE_BYTES", 0)
    assert [accuracy(*each, 200, 7) for each in data] == first
    assert [groups for groups, *_ in statistics._draws_kept] == [80]

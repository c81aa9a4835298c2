"""Means with their n and 95 % interval, and differences of two runs.

Items of one question group are not independent, so intervals are by a cluster bootstrap over whole groups, with
expanded percentiles (Hesterberg 2015, The American Statistician 69(4)). With few groups, for which it is too narrow,
they are by the jackknife over groups (CV3 of MacKinnon, Nielsen and Webb 2023) and Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr, stdtrit

_MAX_GROUPS = 20_000  # that are drawn separately; of more, several are drawn as one, which is as valid and faster
FEW_GROUPS = 50  # with fewer, the jackknife has better coverage than a bootstrap (evaluation/README.md)
_FEW_IN_CELL = 10  # with fewer groups in a cell too
RESAMPLES = 2000  # of what compares runs, each of which may have its own `eval.bootstrap_samples`
_MAX_CACHE_BYTES = 2**28  # bytes of draws
_BLOCK = 2**20  # numbers of draws that are multiplied at once
_EQUAL = 1e-9  # what rounding may leave between equal numbers

Values = Sequence[float] | NDArray[np.float64]
Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
Names = Sequence[str] | Codes  # of groups or cells, or their numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean of n values and its 95 % interval; NaN if there is none.

    The method is `cluster_bootstrap` over question groups; else `cluster_wilson` for shares and `cluster_t` for other
    means; with a single group, by item, `wilson`, `t` or `agresti_min`; or `none`.
    """

    n: int
    value: float
    ci95: tuple[float, float]
    method: str

    def as_dict(self, name: str = "accuracy") -> dict[str, Any]:
        """Return `n`, the value under `name`, `ci95` and `ci_method` for JSON, with `None` for NaN."""
        return {
            "n": self.n,
            name: None if math.isnan(self.value) else self.value,
            "ci95": None if math.isnan(self.ci95[0]) else list(self.ci95),
            "ci_method": self.method,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Estimate):
    """How much more B scores than A on the same items: `value` is b - a, `p` the two-sided p-value."""

    a: float
    b: float
    p: float

    def as_dict(self, name: str = "difference") -> dict[str, Any]:
        """Return the difference with both means and p."""
        return {**Estimate.as_dict(self, name), "a": self.a, "b": self.b, "p": self.p}


def accuracy(
    scores: Values, groups: Names, samples: int = RESAMPLES, seed: int = 0, cells: Names | None = None
) -> Estimate:
    """Return the mean of scores in [0, 1] with a 95 % interval; with `cells` the mean over cells of their means.

    If `cluster_bootstrap` gives no interval, it is Wilson's with Student's t for the normal quantile, for the effective
    number of independent items (Korn and Graubard 1998), given the jackknife's variance or that of items, if greater.
    """
    (estimate,) = accuracies([scores], groups, samples, seed, cells)
    return estimate


def accuracies(
    columns: Sequence[Values], groups: Names, samples: int = RESAMPLES, seed: int = 0, cells: Names | None = None
) -> list[Estimate]:
    """Return the `accuracy` of several scores of the same items."""
    first, group, cell = _columns(columns[0], groups, cells)
    values = [first, *(np.asarray(column, float) for column in columns[1:])]
    if any(len(column) != len(first) for column in values):
        raise ValueError("expected as many scores in each column as there are items")
    drawn = cluster_bootstrap(values, group, cell, samples, seed)
    return [_accuracy(column, group, cell, ci95) for column, ci95 in zip(values, drawn, strict=True)]


def _accuracy(values: Floats, group: Codes, cell: Codes, ci95: tuple[float, float] | None) -> Estimate:
    n, mean, method = len(values), _mean(values, cell), "cluster_bootstrap"
    if not ci95:
        variance, dof = _jackknife(values, group, cell)
        method = "wilson" if math.isinf(dof) else "cluster_wilson"
        independent = _weighting(cell) / n
        variance = max(variance, independent * float(((values - mean) ** 2).mean()))
        effective = mean * (1 - mean) / variance if np.ptp(values) > _EQUAL else 1 / independent
        quantile = float(stdtrit(dof, 0.975))
        weight = quantile**2 / effective
        centre = (mean + weight / 2) / (1 + weight)
        reach = quantile * math.sqrt(mean * (1 - mean) / effective + weight / (4 * effective)) / (1 + weight)
        ci95 = max(0.0, centre - reach), min(1.0, centre + reach)
    return Estimate(n=n, value=mean, ci95=ci95, method=method)


def estimate_mean(
    values: Values,
    groups: Names,
    samples: int,
    seed: int,
    cells: Names | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Return the mean of values within `bounds` with a 95 % interval; with `cells` the mean of the cells' means."""
    if len(values) < 2:
        mean = float(values[0]) if len(values) else math.nan
        return Estimate(n=len(values), value=mean, ci95=(math.nan, math.nan), method="none")
    column, group, cell = _columns(values, groups, cells)
    n, mean = len(column), _mean(column, cell)
    (ci95,), method = cluster_bootstrap([column], group, cell, samples, seed), "cluster_bootstrap"
    if not ci95:
        method = "cluster_t" if group.max() > 0 else "t"
        variance, dof = _jackknife(column, group if group.max() > 0 else np.arange(n), cell)
        reach = math.sqrt(variance) * float(stdtrit(dof, 0.975))
        ci95 = mean - reach, mean + reach
    return Estimate(n=n, value=mean, ci95=(max(bounds[0], ci95[0]), min(bounds[1], ci95[1])), method=method)


def difference(
    a: Values, b: Values, groups: Names, samples: int = RESAMPLES, seed: int = 0, cells: Names | None = None
) -> Difference:
    """Return how much more B scores than A, paired by item, with a 95 % interval and a p-value.

    p is by Student's t over question groups (of a single one over its items), with the jackknife's variance or that of
    independent items after Agresti and Min (2005), if greater. If `cluster_bootstrap` gives no interval, it is that of
    this t. A single item says nothing: p is 1.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    gains, group, cell = _columns(b - a, groups, cells)
    n, gain, single = len(gains), _mean(gains, cell), not group.any()
    variance, dof = _variance_of_gain(gains, np.arange(n) if single else group, cell)
    error = math.sqrt(variance)
    reach = error * float(stdtrit(dof, 0.975)) if n > 1 else math.inf
    tested = gain * n / (n + 2) if single else gain  # with the two pairs more of which the variance is
    (drawn,) = cluster_bootstrap([gains], group, cell, samples, seed)
    return Difference(
        n=n,
        value=gain,
        ci95=drawn or (max(-1.0, gain - reach), min(1.0, gain + reach)),
        method="cluster_bootstrap" if drawn else "agresti_min" if single else "cluster_t",
        a=_mean(a, cell),
        b=_mean(b, cell),
        p=float(2 * stdtr(dof, -abs(tested) / error)) if n > 1 else 1.0,
    )


def cluster_bootstrap(
    columns: Sequence[Floats], group: Codes, cell: Codes, samples: int, seed: int
) -> list[tuple[float, float] | None]:
    """Return the 95 % intervals of means over cells, by expanded percentiles of a bootstrap over groups.

    All columns have the same draws. An interval is `None` if a bootstrap is not reliable: with fewer than `FEW_GROUPS`
    groups, with a cell of fewer than `_FEW_IN_CELL`, or if all draws have the same mean.
    """
    group = group % _MAX_GROUPS
    groups, cells = int(group.max()) + 1, int(cell.max()) + 1
    if groups < FEW_GROUPS:
        return [None] * len(columns)
    joint = group * cells + cell
    sizes, *sums = (
        np.bincount(joint, weights, groups * cells).reshape(groups, cells) for weights in (np.ones(len(cell)), *columns)
    )
    if (sizes > 0).sum(axis=0).min() < _FEW_IN_CELL:
        return [None] * len(columns)
    # The quantile of draws that stands for 2.5 % (Hesterberg 2015).
    tail = float(ndtr(stdtrit(groups - 1, 0.025) * math.sqrt(groups / (groups - 1))))
    means = np.empty((len(columns), samples))
    for rows in _blocks(groups, samples):
        counts = _draws(groups, samples, seed)[rows].astype(float)
        drawn = counts @ sizes
        divisor, present = np.maximum(drawn, 1), (drawn > 0).sum(axis=1)
        for of_column, mean in zip(sums, means, strict=True):
            mean[rows] = (counts @ of_column / divisor).sum(axis=1) / present
    ends, same = np.quantile(means, [tail, 1 - tail], axis=1).T.tolist(), np.ptp(means, axis=1) < _EQUAL
    return [None if is_same else (low, high) for (low, high), is_same in zip(ends, same, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple testing by Holm's method (1979)."""
    order = np.argsort(p)
    adjusted = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return list(map(float, adjusted[order.argsort()]))


def min_detectable_effect(a: Values, b: Values, groups: Names, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Return the smallest true difference between two runs that is detectable with these items, or `None`.

    McNemar's test needs n = (t_alpha sqrt(psi) + t_beta sqrt(psi - d^2))^2 / d^2 pairs to find a difference d with
    discordant share psi (Connor 1987); solved for d, with psi as in these two runs and no less than d, with n divided
    by the design effect of question groups, and with Student's t by the number of groups.
    """
    gains, group, cell = _columns(np.asarray(b, float) - np.asarray(a, float), groups)
    variance, dof = _variance_of_gain(gains, group, cell)
    n = len(gains) * _variance_of_items(gains) / variance
    t_alpha, t_beta = (float(stdtrit(dof, share)) for share in (1 - alpha / 2, power))
    room = n + t_beta**2 - t_alpha**2
    if room < 0:
        return None
    # d = factor * sqrt(psi), and d itself where that is less than d.
    factor = (t_alpha * math.sqrt(n) + t_beta * math.sqrt(room)) / (n + t_beta**2)
    discordant = ((gains**2).sum() + 1) / (len(gains) + 2)
    smallest = factor * max(math.sqrt(discordant), factor)
    return smallest if smallest <= 1 else None


def _jackknife(values: Floats, group: Codes, cell: Codes) -> tuple[float, float]:
    """Return the jackknife variance over groups of a mean over cells, and its degrees of freedom."""
    groups = int(group.max()) + 1
    if groups == 1:  # items count as independent; Student's t is the normal distribution
        return 0.0, math.inf
    sizes, n = np.bincount(cell), len(values)
    means = np.bincount(cell, values) / sizes
    # A cell with a single group does not show how groups vary; its distance from the overall mean is used instead.
    _, pair, pair_sizes = np.unique(cell * n + group, return_inverse=True, return_counts=True)
    rest = sizes[cell] - pair_sizes[pair]
    moved = np.where(rest > 0, (values - means[cell]) / np.maximum(rest, 1), (values - means.mean()) / sizes[cell])
    by_group = np.bincount(group, np.asarray(moved / len(sizes), float))
    return float((by_group**2).sum()) * (groups - 1) / groups, groups - 1


def _variance_of_gain(gains: Floats, group: Codes, cell: Codes) -> tuple[float, float]:
    """Return the variance of the mean gain (the greater of groups' and independent items') and degrees of freedom."""
    variance, dof = _jackknife(gains, group, cell)
    return max(variance, _weighting(cell) * _variance_of_items(gains)), dof


def _weighting(cell: Codes) -> float:
    """Return Kish's design effect: items of small cells weigh more in a mean over cells; 1 with a single cell."""
    sizes = np.bincount(cell)
    return len(cell) / len(sizes) ** 2 * float((1 / sizes).sum())


def _variance_of_items(gains: Floats) -> float:
    """Return the variance of a mean gain of independent pairs and two more, one discordant (Agresti and Min 2005)."""
    n = len(gains) + 2
    return float((gains**2).sum() + 1 - gains.sum() ** 2 / n) / n**2


def _mean(values: Floats, cell: Codes) -> float:
    return float((np.bincount(cell, values) / np.bincount(cell)).mean())


_draws_kept: dict[tuple[int, int, int], NDArray[np.uint8]] = {}  # the last used at the end


def _draws(groups: int, samples: int, seed: int) -> NDArray[np.uint8]:
    """Return how often each resample has each group, from a cache: others have the same number of groups."""
    counts = _draws_kept.pop(key := (groups, samples, seed), None)
    if counts is None:
        rng, shares = np.random.default_rng(seed), np.full(groups, 1 / groups)
        counts = np.empty((samples, groups), np.uint8)  # counts fit a byte
        for rows in _blocks(groups, samples):
            counts[rows] = rng.multinomial(groups, shares, size=rows.stop - rows.start)
    _draws_kept[key] = counts
    while len(_draws_kept) > 1 and sum(kept.nbytes for kept in _draws_kept.values()) > _MAX_CACHE_BYTES:
        del _draws_kept[next(iter(_draws_kept))]
    return counts


def _blocks(groups: int, samples: int) -> list[slice]:
    step = max(1, _BLOCK // groups)
    return [slice(start, min(start + step, samples)) for start in range(0, samples, step)]


def _columns(scores: Values, groups: Names, cells: Names | None = None) -> tuple[Floats, Codes, Codes]:
    """Return scores, and a number for each one's group and cell."""
    if not len(scores):
        raise ValueError("no items to take the accuracy of")
    if not len(scores) == len(groups) == len(groups if cells is None else cells):
        raise ValueError(f"expected a group and a cell for each of {len(scores)} scores")
    cell = np.zeros(len(scores), np.intp) if cells is None else codes(cells)
    return np.asarray(scores, float), codes(groups), cell


def indices_by_name(names: Sequence[Any]) -> Iterator[tuple[Any, Codes]]:
    """Yield the distinct names, sorted, with the indices that have each."""
    numbers = codes(names)
    parts = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    yield from zip(sorted(set(names)), parts, strict=True)


def paired(pairs: Sequence[tuple[Values, Values, Names]], cells: Names | None = None) -> list[tuple[Difference, float]]:
    """Return the `difference` of each pair of runs (A, B, groups), and its p-value adjusted over the pairs."""
    found = [difference(a, b, groups, cells=cells) for a, b, groups in pairs]
    return list(zip(found, holm([each.p for each in found]), strict=True))


def codes(names: Names) -> Codes:
    """Return the index of each name, or number, among the distinct ones."""
    # Sorted, so that the meaning of a draw does not depend on the order of items.
    if isinstance(names, np.ndarray) and names.dtype == np.intp:
        return (np.cumsum(np.bincount(names) > 0) - 1)[names]
    numbers = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names])

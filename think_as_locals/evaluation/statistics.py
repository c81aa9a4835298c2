"""Means that never stand without their n and their interval.

Items of one question group are not independent: what is sampled are groups, not items. So intervals are those of a
cluster bootstrap, which draws whole groups with replacement. Its plain percentiles are too narrow where groups are few;
here they are expanded (Hesterberg 2015, The American Statistician 69(4)). Where a bootstrap says nothing, an interval
comes of the jackknife that leaves out one group at a time (CV3 of MacKinnon, Nielsen and Webb 2023) and Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

MIN_CLUSTERS = 5
"""Of fewer question groups a bootstrap sees too few different draws."""

Floats = Sequence[float] | NDArray[np.float64]

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of right answers, or another mean of values in [0, 1].

    Args:
        n: Number of items.
        accuracy: Mean of their scores, in [0, 1].
        ci95: Its 95 % interval.
        interval: `cluster_bootstrap` over question groups; `cluster_wilson`, which is Wilson's with the jackknife's
            variance over groups, where that says nothing; `wilson` by item where there is a single group.
    """

    n: int
    accuracy: float
    ci95: tuple[float, float]
    interval: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"n": self.n, "accuracy": self.accuracy, "ci95": list(self.ci95), "interval": self.interval}


def accuracy(scores: Floats, groups: Sequence[str], samples: int = 2000, seed: int = 0) -> Accuracy:
    """Mean score with a 95 % interval.

    The interval is that of `cluster_bootstrap`. Where that says nothing, it is Wilson's for as many independent items
    as have the variance that the jackknife finds between groups (Korn and Graubard 1998), n at most, with Student's t
    in place of the normal quantile.

    Args:
        scores: One for each item: 1 right, 0 wrong, 1/k for a tie of k.
        groups: The question group of each item.
        samples: Resamples of question groups.
        seed: Of the resampling.

    Raises:
        ValueError: no items.

    Example:
        >>> accuracy([1, 1, 0, 1], ["a", "a", "b", "b"]).accuracy
        0.75
    """
    return macro(scores, groups, [""] * len(scores), samples, seed)


def macro(scores: Floats, groups: Sequence[str], cells: Sequence[str], samples: int = 2000, seed: int = 0) -> Accuracy:
    """Mean over cells of their mean scores: a cell with few items counts as much as one with many.

    The interval is as for `accuracy`; a cell of which a resample draws no group is left out of that resample's mean.

    Args:
        scores: One for each item.
        groups: The question group of each item.
        cells: What each item is counted under.
        samples: Resamples of question groups.
        seed: Of the resampling.

    Raises:
        ValueError: no items.

    Example:
        >>> macro([1, 1, 1, 0], ["a", "b", "c", "d"], ["TH", "TH", "TH", "JP"]).accuracy
        0.5
    """
    values, group = columns(scores, groups)
    cell = codes(cells)
    mean = float((np.bincount(cell, values) / np.bincount(cell)).mean())
    if ci95 := cluster_bootstrap(values, group, cell, samples, seed):
        return Accuracy(len(values), mean, ci95, "cluster_bootstrap")
    ci95, method = _cluster_wilson(values, group, cell, mean)
    return Accuracy(len(values), mean, ci95, method)


def cluster_bootstrap(
    values: NDArray[np.float64], group: NDArray[np.intp], cell: NDArray[np.intp], samples: int, seed: int
) -> tuple[float, float] | None:
    """95 % interval of a mean over cells, by expanded percentiles of a bootstrap over groups (Hesterberg 2015).

    Of G groups the quantiles are Phi(t sqrt(G / (G - 1))) and 1 less that, where t is Student's at 2.5 % with G - 1
    degrees of freedom. In simulation (groups of 1 to 12 items, intraclass correlation .2, half of them right) the
    interval of `accuracy` holds the truth in 92, 94, 94 and 95 % with 5, 8, 10 and 25 groups, plain percentiles in 84,
    88, 90 and 94 %. Near 0 and 1 it is less good: 93, 90, 89 and 91 % with nine in ten right.

    Args:
        values: One for each item.
        group: Number of each item's group.
        cell: Number of each item's cell.
        samples: Resamples of groups.
        seed: Of the resampling.

    Returns:
        Its ends; `None` where a bootstrap says nothing: with fewer than `MIN_CLUSTERS` groups, with a cell of a single
        group, or where every draw has the same mean (all scores alike, say).
    """
    groups, cells = int(group.max()) + 1, int(cell.max()) + 1
    place = group * cells + cell
    sums, sizes = (
        np.bincount(place, weights, groups * cells).reshape(groups, cells) for weights in (values, np.ones(len(values)))
    )
    if groups < MIN_CLUSTERS or (sizes > 0).sum(axis=0).min() == 1:
        return None
    counts = draws(groups, samples, seed)
    drawn = counts @ sizes
    means = (counts @ sums / np.maximum(drawn, 1)).sum(axis=1) / (drawn > 0).sum(axis=1)
    if np.ptp(means) < _ROUNDING:
        return None
    tail = expanded_tail(groups)
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def expanded_tail(groups: int) -> float:
    """The quantile of a bootstrap's draws that stands for 2.5 % where so many groups, at least two, were drawn from."""
    return float(ndtr(stdtrit(groups - 1, 0.025) * math.sqrt(groups / (groups - 1))))


@lru_cache(maxsize=1)  # what is measured on the same items is measured on the same draws
def draws(groups: int, samples: int, seed: int) -> NDArray[np.float64]:
    """How often each resample holds each group where groups are drawn with replacement; of shape (samples, groups)."""
    shares = np.full(groups, 1 / groups)
    return np.random.default_rng(seed).multinomial(groups, shares, size=samples).astype(float)


def _cluster_wilson(
    values: NDArray[np.float64], group: NDArray[np.intp], cell: NDArray[np.intp], mean: float
) -> tuple[tuple[float, float], str]:
    """Wilson's interval of a mean over cells with the jackknife's variance, and its name."""
    n = len(values)
    found = jackknife(influence(values, group, cell), group)
    effective = min(n, mean * (1 - mean) / found.variance) if found.variance else n
    ci95 = _wilson(mean, effective, float(stdtrit(found.freedom, 0.975)))
    return ci95, "cluster_wilson" if found.groups else "wilson"


def influence(values: NDArray[np.float64], group: NDArray[np.intp], cell: NDArray[np.intp]) -> NDArray[np.float64]:
    """Of each item, its part in how far the mean over cells moves when its question group is left out.

    A cell with a single question group cannot show how groups vary; its distance from the mean of all stands in.

    Args:
        values: One for each item.
        group: Number of each item's group.
        cell: Number of each item's cell.
    """
    sizes, n = np.bincount(cell), len(values)
    means = np.bincount(cell, values) / sizes
    # What is left of an item's cell without its group; nothing where the cell has no other.
    _, pair, pair_sizes = np.unique(cell * n + group, return_inverse=True, return_counts=True)
    rest = sizes[cell] - pair_sizes[pair]
    moved = np.where(rest > 0, (values - means[cell]) / np.maximum(rest, 1), (values - means.mean()) / sizes[cell])
    return np.asarray(moved / len(sizes), float)


class Jackknife(NamedTuple):
    """Variance of a mean over question groups.

    Args:
        variance: Of the mean; 0 where it cannot be found.
        groups: How many were left out in turn; 0 where there is a single one, and items are taken for independent.
    """

    variance: float
    groups: int

    @property
    def freedom(self) -> float:
        """Degrees of freedom of Student's t; infinite, which is the normal distribution, by item."""
        return self.groups - 1 if self.groups else math.inf


def jackknife(influence: NDArray[np.float64], group: NDArray[np.intp]) -> Jackknife:
    """Variance of a mean whose groups are left out one at a time.

    Args:
        influence: Of each item; summed over a group, how far the mean moves when the group is left out.
        group: Number of each item's group.
    """
    groups = int(group.max()) + 1
    if groups == 1:
        return Jackknife(0.0, 0)
    moved = np.bincount(group, influence)
    return Jackknife(float((moved**2).sum()) * (groups - 1) / groups, groups)


def _wilson(mean: float, n: float, quantile: float) -> tuple[float, float]:
    """Wilson's interval for a share of n items."""
    weight = quantile**2 / n
    centre = (mean + weight / 2) / (1 + weight)
    reach = quantile * math.sqrt(mean * (1 - mean) / n + weight / (4 * n)) / (1 + weight)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def columns(scores: Floats, groups: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Scores, and the number of each one's group."""
    rows = list(zip(scores, groups, strict=True))
    if not rows:
        raise ValueError("no items to take the accuracy of")
    return np.array([score for score, _ in rows], float), codes([group for _, group in rows])


def codes(names: Sequence[str]) -> NDArray[np.intp]:
    """A number for each name, from 0."""
    # Sorted, so that the order of items does not decide which group a draw stands for.
    numbers = {name: i for i, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names])

"""Means of values of any size, such as changes of scores, with the intervals of `statistics.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from think_as_locals.evaluation.statistics import Floats, cluster_bootstrap, codes, columns, influence, jackknife


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of values of any size.

    Args:
        n: Number of items.
        mean: Of their values.
        ci95: Its 95 % interval; `None` where a single item, or none, gives none.
        interval: `cluster_bootstrap` over question groups; where that says nothing `cluster_t`, the jackknife over
            groups with Student's t; `t` by item where there is a single group; `none`.
    """

    n: int
    mean: float | None
    ci95: tuple[float, float] | None
    interval: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "n": self.n,
            "mean": self.mean,
            "ci95": None if self.ci95 is None else list(self.ci95),
            "interval": self.interval,
        }


def estimate_mean(
    values: Floats,
    groups: Sequence[str],
    samples: int,
    seed: int,
    cells: Sequence[str] | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Mean:
    """Mean of values that need not lie in [0, 1], with a 95 % interval.

    Nothing is known of values that were not seen, so where all are alike the interval has no width.

    Args:
        values: One for each item; there may be none.
        groups: The question group of each item.
        samples: Resamples of question groups.
        seed: Of the resampling.
        cells: What each item is counted under, where the mean is one of the cells' means.
        bounds: What no value can be below or above, and so no end of the interval.

    Example:
        >>> estimate_mean([3.0, 5.0], ["a", "b"], samples=100, seed=0).mean
        4.0
    """
    if not len(values):
        return Mean(0, None, None, "none")
    column, group = columns(values, groups)
    n = len(column)
    cell = codes(cells or [""] * n)
    centre = float((np.bincount(cell, column) / np.bincount(cell)).mean())
    if drawn := cluster_bootstrap(column, group, cell, samples, seed):
        return Mean(n, centre, drawn, "cluster_bootstrap")
    if n == 1:
        return Mean(n, centre, None, "none")
    by_group = bool(group.max() > 0)
    units = group if by_group else np.arange(n)
    found = jackknife(influence(column, units, cell), units)
    reach = math.sqrt(found.variance) * float(stdtrit(found.freedom, 0.975))
    ends = max(bounds[0], centre - reach), min(bounds[1], centre + reach)
    return Mean(n, centre, ends, "cluster_t" if by_group else "t")

"""Accuracy that never stands without its n and its interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

MIN_CLUSTERS = 5


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of right answers.

    Args:
        n: Number of items.
        accuracy: Mean of their scores, in [0, 1].
        ci95: Its 95 % interval.
        interval: `cluster_bootstrap` over question groups, or `wilson` over items where the former says nothing.
    """

    n: int
    accuracy: float
    ci95: tuple[float, float]
    interval: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"n": self.n, "accuracy": self.accuracy, "ci95": list(self.ci95), "interval": self.interval}


def accuracy(scores: Sequence[float], groups: Sequence[str], samples: int = 2000, seed: int = 0) -> Accuracy:
    """Mean score with a 95 % interval.

    Items of one question group are not independent, so groups are resampled, not items. With fewer than
    `MIN_CLUSTERS` groups a bootstrap says nothing, and none at all where every score is the same; then it is Wilson's
    interval over items, which takes them for independent.

    Args:
        scores: One for each item: 1 right, 0 wrong, 1/k for a tie of k.
        groups: The question group of each item.
        samples: Resamples.
        seed: Of the resampling.

    Raises:
        ValueError: no items.

    Example:
        >>> accuracy([1, 1, 0, 1], ["a", "a", "b", "b"]).accuracy
        0.75
    """
    if not scores:
        raise ValueError("no items to take the accuracy of")
    by_group: dict[str, list[float]] = defaultdict(list)
    for score, group in zip(scores, groups, strict=True):
        by_group[group].append(score)
    mean = float(np.mean(scores))
    if len(by_group) < MIN_CLUSTERS or len(set(scores)) == 1:
        wilson = stats.binomtest(round(sum(scores)), len(scores)).proportion_ci(method="wilson")
        return Accuracy(len(scores), mean, (float(wilson.low), float(wilson.high)), "wilson")
    sums = np.array([sum(values) for values in by_group.values()])
    sizes = np.array([len(values) for values in by_group.values()])
    # Drawing groups with replacement is drawing how often each one counts.
    counts = np.random.default_rng(seed).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=samples)
    means = (counts @ sums) / (counts @ sizes)
    low, high = np.quantile(means, [0.025, 0.975])
    return Accuracy(len(scores), mean, (float(low), float(high)), "cluster_bootstrap")

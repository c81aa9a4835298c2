"""Simulated coverage of 95 % intervals: tests/benchmarks/intervals.json and the guide's table.

    python tests/benchmarks/intervals.py [simulations] [--correlation .5] [--uneven]

Question groups have 1 to 12 items (`--uneven`: the first as many as all others) whose answers are right with a chance
that varies from group to group (beta distributed, intraclass correlation .2), each item in one of four cells at random;
two runs agree on most items. The file is of the defaults.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from think_as_locals.evaluation.statistics import accuracy, difference

RESULT = Path(__file__).with_suffix(".json")
GROUPS = (3, 5, 8, 15, 30, 60)
CASES = {
    "half right": ("items", 0.5, None),
    "seven in ten right": ("items", 0.7, None),
    "nine in ten right": ("items", 0.9, None),
    "macro over 4 cells, half right": ("cells", 0.5, None),
    "macro over 4 cells, nine in ten right": ("cells", 0.9, None),
    "difference of runs, .5 and .6": ("items", 0.5, 0.6),
    "difference of runs, .85 and .9": ("items", 0.85, 0.9),
    "difference over 4 cells, .85 and .9": ("cells", 0.85, 0.9),
}


def simulate(
    rng: np.random.Generator, groups: int, *shares: float, correlation: float = 0.2, uneven: bool = False
) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Return the scores of a run for each share of right answers, on the same items, and the items' groups."""
    sizes = rng.integers(1, 13, groups)
    sizes[0] = sizes[1:].sum() if uneven else sizes[0]
    group = np.arange(groups).repeat(sizes)
    luck, runs = rng.random(len(group)), []
    spread = 1 / correlation - 1
    for share in shares:
        chance = rng.beta(spread * share, spread * (1 - share), groups)[group]
        runs.append((np.where(rng.random(len(group)) < 0.6, luck, rng.random(len(group))) < chance).astype(float))
    return runs, group.astype(str).tolist()


def covers_truth(
    rng: np.random.Generator, groups: int, over: str, a: float, b: float | None, seed: int, **options: Any
) -> bool:
    """Whether one simulated interval holds the truth."""
    runs, names = simulate(rng, groups, *(share for share in (a, b) if share is not None), **options)
    cells = rng.integers(0, 4, len(names)).astype(str).tolist() if over == "cells" else None
    if b is None:
        low, high = accuracy(runs[0], names, seed=seed, cells=cells).ci95
        return low <= a <= high
    low, high = difference(runs[0], runs[1], names, seed=seed, cells=cells).ci95
    return low <= b - a <= high


def table(found: dict[str, dict[str, float]]) -> str:
    """Return coverage as the guide shows it, in per cent."""
    rows = [["question groups", *map(str, GROUPS)], ["---"] * (len(GROUPS) + 1)]
    rows += [[case, *(f"{100 * of_case[str(n)]:.0f}" for n in GROUPS)] for case, of_case in found.items()]
    return "\n".join(f"|{'|'.join(row)}|" if "---" in row else f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure every case and print the table; of the defaults write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulations", type=int, nargs="?", default=2000)
    parser.add_argument("--correlation", type=float, default=0.2)
    parser.add_argument("--uneven", action="store_true")
    simulations, options = (given := vars(parser.parse_args())).pop("simulations"), given
    found = {}
    for case, asked in track(CASES.items(), description="coverage"):
        rngs = {groups: np.random.default_rng(groups) for groups in GROUPS}
        found[case] = {
            str(groups): float(
                np.mean([covers_truth(rng, groups, *asked, seed, **options) for seed in range(simulations)])
            )
            for groups, rng in rngs.items()
        }
    if options == {"correlation": 0.2, "uneven": False}:
        RESULT.write_text(
            json.dumps({"simulations": simulations, "coverage": found}, indent=1) + "\n", encoding="utf-8"
        )
    print(table(found))


if __name__ == "__main__":
    main()

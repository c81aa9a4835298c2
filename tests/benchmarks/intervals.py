"""How often 95 % intervals hold the truth, in simulation: tests/benchmarks/intervals.json and the guide's table.

    python tests/benchmarks/intervals.py [simulations]

Question groups have 1 to 12 items whose answers are right with a chance that varies from group to group (beta
distributed, intraclass correlation .2), each item in one of four cells at random; two runs agree on most items.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from think_as_locals.evaluation.statistics import accuracy, difference

RESULT = Path(__file__).with_suffix(".json")
GROUPS = (3, 5, 8, 15, 30, 60)
CORRELATION = 0.2
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


def simulate(rng: np.random.Generator, groups: int, *shares: float) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Return the scores of a run for each share of right answers, on the same items, and the items' groups."""
    group = np.arange(groups).repeat(rng.integers(1, 13, groups))
    luck, runs = rng.random(len(group)), []
    spread = 1 / CORRELATION - 1
    for share in shares:
        chance = rng.beta(spread * share, spread * (1 - share), groups)[group]
        runs.append((np.where(rng.random(len(group)) < 0.6, luck, rng.random(len(group))) < chance).astype(float))
    return runs, group.astype(str).tolist()


def held(rng: np.random.Generator, groups: int, over: str, a: float, b: float | None, seed: int) -> bool:
    """Whether one simulated interval holds the truth."""
    runs, names = simulate(rng, groups, *(share for share in (a, b) if share is not None))
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


def main(simulations: int) -> None:
    """Measure every case and write the result."""
    found = {}
    for case, asked in track(CASES.items(), description="coverage"):
        rngs = {groups: np.random.default_rng(groups) for groups in GROUPS}
        found[case] = {
            str(groups): float(np.mean([held(rng, groups, *asked, seed) for seed in range(simulations)]))
            for groups, rng in rngs.items()
        }
    RESULT.write_text(json.dumps({"simulations": simulations, "coverage": found}, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)

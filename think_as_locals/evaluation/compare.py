"""Compare two runs on the same items: which is better, where, and the smallest difference that can be detected."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from think_as_locals.evaluation import carb
from think_as_locals.evaluation.breakdowns import BREAKDOWNS, macro_cells
from think_as_locals.evaluation.judgements import Judgements
from think_as_locals.evaluation.statistics import (
    Codes,
    Floats,
    accuracies,
    codes,
    difference,
    holm,
    indices_by_name,
    min_detectable_effect,
)
from think_as_locals.evaluation.tables import figure, p_value
from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import ConfigError, DataError, Item

ALPHA = 0.05
CAPTION = (
    "Per cent with 95 % intervals. p: of no difference, with question groups as the unit, adjusted over the cells "
    "(Holm). detectable: the smallest true difference that this many items would show with 80 % power. macro: the mean "
    "over all cells of culture and domain."
)
_MAX_FAILURES = 0.05  # parse failures, from which they are pointed out
_ALL, _FLIPS, _MACRO = "all items", "flip sets", "macro"


Comparison = dict[str, Any]
"""Two runs on some of the items, or their means over cells, in shares of 1 as plain JSON.

`difference` is b - a, paired by item; the unit of its p-value is the question group, and p-values of parts are
adjusted. `min_detectable_effect` is with 80 % power; `None` if no difference would be detected.
"""


def compare(a: Judgements, b: Judgements, by: str) -> list[Comparison]:
    """Compare runs on all items, on flip sets, over cells, and by a breakdown.

    Only the p-values of the breakdown are adjusted for one another (Holm 1979).
    """
    if by not in BREAKDOWNS:
        raise ConfigError(f"no breakdown by {by!r}; available: {', '.join(BREAKDOWNS)}")
    _check_same_items(a.items, b.items)
    both = a.by_item("credit"), b.by_item("credit")
    compare_part = partial(_compare, columns=both, group=a.group, baselines=a.baselines())
    every, flips, macro = np.arange(len(a.items)), a.flip_sets(), macro_cells(a.items)
    overall = [compare_part(_ALL, every, 1)]
    if flips:
        overall.append(compare_part(_FLIPS, np.concatenate(flips), 1))
    if macro["of"] > 1:
        of = f" of {macro['of']}" if macro["missing"] else ""
        cells = codes(list(map(BREAKDOWNS["cell"], a.items)))
        overall.append(compare_part(f"{_MACRO}, {macro['cells']}{of} cells", every, None, cells=cells))
    parts = dict(indices_by_name(list(map(BREAKDOWNS[by], a.items))))
    found = [compare_part(name, indices, len(parts)) for name, indices in parts.items()]
    for comparison, p in zip(found, holm([each["p"] for each in found]), strict=True):
        comparison["p"] = comparison["difference"]["p"] = p
    return overall + found


def _compare(
    name: str,
    indices: Codes,
    tests: int | None,
    *,
    columns: tuple[Floats, Floats],
    group: Codes,
    baselines: Mapping[str, Floats],
    cells: Codes | None = None,
) -> Comparison:
    """Compare the credits of two runs on the items at some indices, as one of several tests; of cells without tests."""
    groups, (a, b) = group[indices], (column[indices] for column in columns)
    every = [a, b, *(column[indices] for column in baselines.values())]
    first, second, *of_baselines = accuracies(every, groups, cells=cells)
    gain = difference(a, b, groups, cells=cells)
    return {
        "name": name,
        "a": first.as_dict(),
        "b": second.as_dict(),
        "difference": gain.as_dict(),
        "baselines": {name: estimate.as_dict() for name, estimate in zip(baselines, of_baselines, strict=True)},
        "p": gain.p,
        "min_detectable_effect": min_detectable_effect(a, b, groups, ALPHA / tests) if tests else None,
    }


def _check_same_items(a: Sequence[Item], b: Sequence[Item]) -> None:
    first, second = ({item.id: item for item in items} for items in (a, b))
    shared = first.keys() & second.keys()
    faults = {
        "only in the first": first.keys() - shared,
        "only in the second": second.keys() - shared,
        "with one id and different content": {name for name in shared if first[name] != second[name]},
    }
    named = [f"{len(names)} {what} (such as {min(names)!r})" for what, names in faults.items() if names]
    if named:
        raise DataError(
            f"the runs are over different items: {', '.join(named)}; of {len(first)} and {len(second)}. "
            "Compare runs with the same data, split, seed and eval.max_items, and where items are too long for one "
            "with eval.too_long=wrong"
        )


def read(run: Path, known: dict[str, Item]) -> Judgements:
    """Load a run's table (`carb/NAME.parquet`), or the last one in its folder; `known` items, by id, are shared."""
    return Judgements.read(_last(run), known)


def _last(run: Path) -> Path:
    """Return the table of a run."""
    if not run.is_dir():
        return run.with_suffix(".parquet") if run.suffix == ".json" else run
    steps = carb.steps(RunFolder(run))
    if not steps:
        tables = ", ".join(map(str, sorted(RunFolder(run).carb_dir.glob("*.parquet")))) or "a carb/NAME.parquet"
        raise DataError(f"{run}: no carb/step-N.json; expected the folder of a run that trained a judge, or {tables}")
    # The JSON of a measurement is written last: if it exists, the table is complete.
    return steps[max(steps)].with_suffix(".parquet")


def notes(runs: Mapping[str, Path]) -> tuple[list[str], set[str]]:
    """Return warnings about runs, and the names of those whose model was trained on some of the items."""
    files = {name: _last(run).with_suffix(".json") for name, run in runs.items()}
    summaries = {name: read_json(file) for name, file in files.items() if file.is_file()}
    found = [f"Warning: {warning}" for name, summary in summaries.items() for warning in carb.warnings(name, summary)]
    for name, summary in summaries.items():
        if (share := summary["parse_failure"]) > _MAX_FAILURES:
            found.append(f"Warning: {name}: {share:.0%} of its judgements have no verdict, and count as wrong")
    return found, {name for name, summary in summaries.items() if carb.trained_on_note(summary)}


def table(comparisons: Sequence[Comparison], trained: Collection[str] = ()) -> DataFrame:
    """Return comparisons as the rows of a table, in per cent; † marks runs that were `trained` on some of the items."""
    rows = []
    for each in comparisons:
        name, baseline = max(each["baselines"].items(), key=lambda named: float(named[1]["accuracy"]))
        effect = each["min_detectable_effect"]
        least = "none" if effect is None else f"{100 * effect:.1f}"
        rows.append(
            {
                "items": each["name"],
                "n": str(each["difference"]["n"]),
                **{f"{side} †" if side in trained else side: figure(each[side.lower()]) for side in "AB"},
                "B - A": figure(each["difference"], "difference", "+.1f"),
                "p": p_value(each["p"]),
                "detectable": "" if each["name"].startswith(f"{_MACRO}, ") else least,
                "best baseline": f"{name} {figure(baseline)}",
            }
        )
    return DataFrame(rows)

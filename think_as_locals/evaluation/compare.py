"""Two runs on the same items: which is better, where, and how small a difference this many items can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from think_as_locals.evaluation import carb
from think_as_locals.evaluation.baselines import baseline_credits
from think_as_locals.evaluation.judged import BREAKDOWNS, JudgedItem, grouped, judged_flip_sets, read_rows
from think_as_locals.evaluation.paired import Difference, difference, holm, mcnemar, smallest_difference
from think_as_locals.evaluation.statistics import Accuracy, accuracy
from think_as_locals.evaluation.terminal import plain
from think_as_locals.judging import permute
from think_as_locals.types import LABELS, ConfigError, DataError, Item

ALPHA = 0.05

_ALL, _FLIPS = "all items", "flip sets"
_CAPTION = (
    "Per cent with 95 % intervals. p: of no difference, question groups being the unit; McNemar takes items for "
    "independent; both adjusted over the cells (Holm). smallest: the smallest true difference that this many items "
    "would show with 80 % power."
)
_ITEM = ("id", "culture", "domain", "language", "group", "source", "prompt", "responses", "origins")
_JUDGEMENT = ("best", "verdict", "credit", "scores", "issues", "completion")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the same items, or on a part of them.

    Args:
        name: Of the part.
        a: Accuracy of the first run.
        b: Accuracy of the second.
        difference: b - a with its interval, paired by item.
        p_groups: Of no difference, question groups being the unit; adjusted over the cells it stands among.
        p_mcnemar: Of McNemar's exact test, which takes items for independent; adjusted likewise.
        smallest: The smallest true difference that would be found with 80 % power; `None` where none would.
        baselines: Accuracy of each baseline on these items.
    """

    name: str
    a: Accuracy
    b: Accuracy
    difference: Difference
    p_groups: float
    p_mcnemar: float
    smallest: float | None
    baselines: dict[str, Accuracy]


def compare(a: Sequence[JudgedItem], b: Sequence[JudgedItem], by: str) -> list[Comparison]:
    """All items, the whole flip sets where there are any, then each cell of a breakdown.

    The p-values of the cells are adjusted for one another (Holm 1979); those of all items and of the flip sets stand
    alone.

    Args:
        a: What the first run made of the items.
        b: What the second one made of them, in any order.
        by: One of `BREAKDOWNS`.

    Raises:
        ConfigError: there is no such breakdown.
        DataError: the runs are over different items.
    """
    if by not in BREAKDOWNS:
        raise ConfigError(f"no breakdown by {by!r}; available: {', '.join(BREAKDOWNS)}")
    _check_same_items(a, b)
    other = {j.item.id: j for j in b}
    baselines = baseline_credits([j.item for j in a])
    a = sorted(a, key=lambda j: j.item.id)  # sums are rounded: of any order they shall have the same bits
    parts = {_ALL: a}
    if flips := [j for members in judged_flip_sets(a) for j in members]:
        parts[_FLIPS] = flips
    alone = [_compare(name, part, other, baselines, 1) for name, part in parts.items()]
    cells = sorted(grouped(a, lambda j: BREAKDOWNS[by](j.item)).items())
    among = [_compare(name, part, other, baselines, len(cells)) for name, part in cells]
    adjusted = zip(holm([c.p_groups for c in among]), holm([c.p_mcnemar for c in among]), strict=True)
    return alone + [
        replace(c, p_groups=p_groups, p_mcnemar=p_mcnemar)
        for c, (p_groups, p_mcnemar) in zip(among, adjusted, strict=True)
    ]


def _compare(
    name: str,
    part: Sequence[JudgedItem],
    other: dict[str, JudgedItem],
    baselines: dict[str, dict[str, float]],
    tests: int,
) -> Comparison:
    groups = [j.item.group for j in part]
    a, b = [j.credit for j in part], [other[j.item.id].credit for j in part]
    found = difference(a, b, groups)
    return Comparison(
        name=name,
        a=accuracy(a, groups),
        b=accuracy(b, groups),
        difference=found,
        p_groups=found.p,
        p_mcnemar=mcnemar(a, b),
        smallest=smallest_difference(a, b, groups, ALPHA / tests),
        baselines={
            baseline: accuracy([worth[j.item.id] for j in part], groups) for baseline, worth in baselines.items()
        },
    )


def read(run: Path) -> list[JudgedItem]:
    """What a run made of its items.

    Args:
        run: A table of judgements (`carb/NAME.parquet`), or the folder of a training run: then its last.

    Raises:
        DataError: there is none, or it cannot be read; the message names the file.
    """
    path = _last(run) if run.is_dir() else run.with_suffix(".parquet") if run.suffix == ".json" else run
    return judged_rows(read_rows(path), path)


def judged_rows(rows: Sequence[dict[str, Any]], path: Path) -> list[JudgedItem]:
    """What the rows of a table of judgements come to, each item once.

    Args:
        rows: `Prediction.row()` each.
        path: Where they are from, for messages.

    Raises:
        DataError: there are none, or they cannot be read; the message names the file.
    """
    if not rows:
        raise DataError(f"{path}: no judgements")
    if lacks := [name for name in (*_ITEM, *_JUDGEMENT) if name not in rows[0]]:
        raise DataError(f"{path}: a table of judgements lacks {', '.join(lacks)}; measure again")
    judged = []
    for name, judgements in grouped(rows, lambda row: str(row["id"])).items():
        try:
            items = {_item(row) for row in judgements}
            worth = [_credit(row) for row in judgements]
        except (DataError, ValueError, TypeError) as error:
            raise DataError(f"{path}: {error}") from error
        if len(items) > 1:
            raise DataError(f"{path}: several items are called {name!r}")
        judged.append(JudgedItem(items.pop(), math.fsum(worth) / len(worth)))
    return judged


def _last(run: Path) -> Path:
    """The last measurement of a run that is whole: its JSON is written last."""
    steps = carb.steps(run / "carb")
    if not steps:
        tables = ", ".join(map(str, sorted(run.glob("carb/*.parquet")))) or "a carb/NAME.parquet"
        raise DataError(f"{run}: no carb/step-N.json; expected the folder of a run that trained a judge, or {tables}")
    return steps[max(steps)].with_suffix(".parquet")


def _item(row: dict[str, Any]) -> Item:
    """The item of a row, its responses in an order that does not depend on how they were shown."""
    shown = Item(best=LABELS.index(row["best"]), **{name: row[name] for name in _ITEM})
    return permute(shown, tuple(sorted(range(len(shown.responses)), key=shown.responses.__getitem__)))


def _credit(row: dict[str, Any]) -> float:
    """What a judgement is worth; whoever reads on may take it for one of an item's own responses, or none."""
    credit, verdict, labels = row["credit"], row["verdict"], tuple(LABELS[: len(row["responses"])])
    if not isinstance(credit, float) or not 0 <= credit <= 1:
        raise DataError(f"item {row['id']!r}: credit must be in [0, 1], got {credit!r}")
    if verdict is not None and verdict not in labels:
        raise DataError(f"item {row['id']!r}: verdict must be one of {', '.join(labels)} or none, got {verdict!r}")
    return credit


def _check_same_items(a: Sequence[JudgedItem], b: Sequence[JudgedItem]) -> None:
    first, second = ({j.item.id: j.item for j in run} for run in (a, b))
    faults = {
        "only in the first": sorted(first.keys() - second.keys()),
        "only in the second": sorted(second.keys() - first.keys()),
        "with one id and different content": sorted(
            name for name in first.keys() & second.keys() if first[name] != second[name]
        ),
    }
    told = [f"{len(names)} {what} (such as {names[0]!r})" for what, names in faults.items() if names]
    if told:
        raise DataError(
            f"the runs are over different items: {', '.join(told)}; of {len(first)} and {len(second)}. "
            "Compare runs with the same data, split, seed and eval.max_items"
        )


def table(comparisons: Sequence[Comparison], a: str, b: str) -> Table:
    """Comparisons for a terminal, a row each, in per cent.

    Args:
        comparisons: As `compare` gives them.
        a: What the first run is called.
        b: What the second one is called.
    """
    shown = Table(title=plain(f"A: {a}\nB: {b}"), title_justify="left", caption=_CAPTION, caption_justify="left")
    shown.add_column("items", overflow="fold")
    for heading in ("n", "A", "B", "B - A", "p", "p McNemar", "smallest", "best baseline"):
        shown.add_column(heading, justify="right", overflow="fold")  # never cut a figure short
    for c in comparisons:
        name, baseline = max(c.baselines.items(), key=lambda named: named[1].accuracy)
        shown.add_row(
            plain(c.name),
            str(c.difference.n),
            _percent(c.a.accuracy, c.a.ci95),
            _percent(c.b.accuracy, c.b.ci95),
            _percent(c.difference.difference, c.difference.ci95, "+"),
            _p(c.p_groups),
            _p(c.p_mcnemar),
            "none" if c.smallest is None else f"{100 * c.smallest:.1f}",
            f"{name} {_percent(baseline.accuracy, baseline.ci95)}",
            end_section=c.name in (_ALL, _FLIPS),
        )
    return shown


def _percent(value: float, interval: tuple[float, float], sign: str = "") -> str:
    low, high = (100 * end for end in interval)
    return f"{100 * value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"

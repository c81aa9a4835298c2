"""Yields: how many items a model was asked about, and how many completions were kept."""

from __future__ import annotations

import io

from items import make_item
from rich.console import Console
from rich.progress import Progress

from think_as_locals.evaluation.sampling import advance, yield_summary, yield_table

ITEMS = [make_item(id=str(i), group=f"group {i}", culture=("TH", "JP")[i % 2]) for i in range(4)]


def test_yields_count_completions_and_kept_items() -> None:
    completions = [(item.id, "wrong", ["late", "long"] if item.id == "0" else ["late"]) for item in ITEMS]
    completions += [("0", "right", []), ("1", "right", [])]
    found = yield_summary(ITEMS, completions, ("right", "wrong"), {"0", "1"}, hinted={"0"})
    counts = {"n": 4, "yield": 0.5, "completions": 6, "right": 2, "wrong": 4, "hinted": 1}
    assert {key: found[key] for key in counts} == counts
    assert found["broken"] == {"late": 4, "long": 1}
    assert {culture: part["hinted"] for culture, part in found["by_culture"].items()} == {"JP": 0, "TH": 1}
    table = yield_table("culture", "kept, %", {**found["by_culture"], "all": found}, {"completions": "asked"})
    assert table.iloc[-1, -1] == "6"


def test_yield_of_no_items_is_none() -> None:
    found = yield_summary([], [], ("right",), [])
    assert (found["n"], found["yield"], found["right"], found["by_culture"]) == (0, None, 0, {})
    written = yield_table("probe", "edited, %", {"RC": found}, {"right": "kept"}).iloc[0].tolist()
    assert written == ["RC", "", "0"]


def test_bar_counts_the_requests_of_all_rounds() -> None:
    bar = Progress(console=Console(file=io.StringIO()))
    update = advance(bar, "a tournament")
    shown = []
    for more, total in [(1, 4), (3, 4), (0, 2), (1, 2), (1, 2), (0, 1)]:
        update(more, total)
        shown.append((bar.tasks[0].completed, bar.tasks[0].total))
    assert shown == [(1, 4), (4, 4), (4, 6), (5, 6), (6, 6), (6, 7)]

"""RewardBench 2's subset Ties (arXiv 2506.01937): rows with several right answers, counted as its published code does.

A row is several items here, one for each right answer (`data/sources/rewardbench2.py`), and is right if all of them
are. Each prompt has two rows: `tied:K` with several right answers, and `ref:K` with one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd

from think_as_locals.types import Item

_WEIGHTS = (0.3, 0.3, 0.2, 0.2, 0.01)  # tied rows right, reference rows right, margins, hard margins, their size


def row_name(item: Item) -> str:
    """Return the id of an item's row in its data set."""
    is_tie = item.source == "rewardbench2" and item.group.startswith("ties:")
    return item.id.rpartition("/")[0] if is_tie else item.id


def merge_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return judgements with one item for each row of Ties, which has the lowest credit of the row's items."""
    ties = (table["source"] == "rewardbench2") & table["group"].str.startswith("ties:")
    if not ties.any():
        return table
    by_row = table[ties].groupby(table["id"].str.rpartition("/")[0])
    worst = by_row[["credit", "correct"]].transform("min")
    merged = table.assign(**{name: worst[name].combine_first(table[name]).astype(table[name].dtype) for name in worst})
    return merged[~ties | (table["id"] == by_row["id"].transform("first").reindex(table.index))]


def composite(table: pd.DataFrame) -> float | None:
    """Return the published score of Ties, about 0 to 1, of a model that scores each response by itself.

    It weighs the accuracy on both kinds of rows, and how often the worst right answer stands further above the best
    wrong one than the right answers apart: in the tied row, and in both rows. `None` without scores of every row,
    or without whole pairs of rows.

    Example:
        composite(tabulate(scored))  # 0.654: two prompts, of which one tied row has a wrong answer above a right one
    """
    scores: dict[tuple[str, str], dict[bool, dict[str, float]]] = defaultdict(lambda: {True: {}, False: {}})
    for row in table.itertuples(index=False):
        kind, _, prompt = row.id.removeprefix("rewardbench2/").partition("/")[0].partition(":")
        if row.source == "rewardbench2" and kind in ("ref", "tied"):
            if row.scores is None:  # the published code has a rating of every row, whatever the model wrote
                return None
            for index, (response, score) in enumerate(zip(row.responses, row.scores, strict=True)):
                known = scores[kind, prompt][index == row.best].setdefault(response, score)
                if known != score:  # of a comparison, not of the response by itself
                    return None
    prompts = sorted({prompt for kind, prompt in scores if {("ref", prompt), ("tied", prompt)} <= scores.keys()})
    if not prompts:
        return None
    above, apart = {}, {}
    for key, of_row in scores.items():
        right, wrong = of_row[True].values(), of_row[False].values()
        above[key], apart[key] = min(right) - max(wrong, default=-np.inf), max(right) - min(right)
    accuracies = [np.mean([above[key] > 0 for key in scores if key[0] == kind]) for kind in ("tied", "ref")]
    tied, reference = (np.array([above[kind, prompt] for prompt in prompts]) for kind in ("tied", "ref"))
    spread, least = np.array([apart["tied", prompt] for prompt in prompts]), np.minimum(tied, reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.nan_to_num(np.tanh(least / spread - 1)).mean()
    parts: tuple[Any, ...] = (*accuracies, (tied > spread).mean(), (least > spread).mean(), size)
    return float(np.dot(_WEIGHTS, parts))

"""RewardBench 2's subset Ties (arXiv 2506.01937): rows with several right answers, counted as its published code does.

A row is several items here, one for each right answer (`data/sources/rewardbench2.py`), and is right if all of them
are. Each prompt has two rows: `tied:K` with several right answers, and `ref:K` with one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd

from think_as_locals.reward_models.reward_model import is_unanswered

_ITEM = re.compile(r"(?P<row>rewardbench2/.+)/\d+-\d+-of-(?P<right>\d+)x(?P<wrong>\d+)(/pair-\d+)?")
_WEIGHTS = (0.3, 0.3, 0.2, 0.2, 0.01)  # tied rows right, reference rows right, margins, hard margins, their size


def row_name(name: str) -> str:
    """Return the id of an item's row in its data set, given the item's."""
    found = _ITEM.fullmatch(name)
    return found["row"] if found else name


def merge_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return judgements with one item for each row of Ties, with the lowest credit of the row's items.

    An item that was not taken (too long, or refused) stands for its row, otherwise the first one.
    """
    names = table["id"].map(row_name)
    ties = names != table["id"]
    if not ties.any():
        return table
    worst = table.groupby(names)[["credit", "correct"]].transform("min")
    shown = table.assign(taken=~table["issues"].map(is_unanswered).astype(bool)).sort_values("taken", kind="stable")
    merged = table.assign(**{name: worst[name].where(ties, table[name]) for name in worst})
    return merged[~ties | (table["id"] == names.map(shown.groupby(names)["id"].first()))]


def composite(table: pd.DataFrame) -> float | None:
    """Return the published score of Ties, about 0 to 1, of a model that scores each response by itself.

    It weighs the accuracy on both kinds of rows, and how often the worst right answer stands further above the best
    wrong one than the right answers apart: in the tied row, and in both rows. `None` without a score of every response
    of a row, or without whole pairs of rows.

    Example:
        composite(tabulate(scored))  # 0.654: two prompts, of which one tied row has a wrong answer above a right one
    """
    scores: dict[tuple[str, str], dict[bool, dict[str, float]]] = defaultdict(lambda: {True: {}, False: {}})
    sizes: dict[tuple[str, str], list[int]] = {}
    for row in table.itertuples(index=False):
        if found := _ITEM.fullmatch(row.id):
            kind, _, prompt = found["row"].removeprefix("rewardbench2/").partition(":")
            sizes[kind, prompt] = [int(found["right"]), int(found["wrong"])]
            if row.scores is None:  # the published code has a rating of every row, whatever the model wrote
                return None
            for index, (response, score) in enumerate(zip(row.responses, row.scores, strict=True)):
                known = scores[kind, prompt][index == row.best].setdefault(response, score)
                if known != score:  # of a comparison, not of the response by itself
                    return None
    if any([*map(len, of_row.values())] != sizes[key] for key, of_row in scores.items()):
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

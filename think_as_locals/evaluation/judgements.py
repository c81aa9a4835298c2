"""The judgements of a reward model as a table: written, read, and reduced to the credit of each item."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from pyarrow import Table

from think_as_locals.data import flip_sets
from think_as_locals.evaluation.baselines import baseline_credits
from think_as_locals.evaluation.statistics import Codes, Estimate, Floats, accuracy, codes, difference
from think_as_locals.judging import reorder_responses
from think_as_locals.judging.formats import VOIDING
from think_as_locals.reward_models.reward_model import ScoredItem, is_unanswered
from think_as_locals.runtime.files import parquet_batches
from think_as_locals.types import ITEM_FIELDS, LABELS, DataError, Item

OUTCOMES = ("right", "tie", "wrong", "parse failure", "too long")
"""The outcomes of a judgement; in a tie the best response shares the highest score with others.

Of an item that a server refused it is `too long`: neither is judged.
"""

COLUMNS = (*ITEM_FIELDS, *("verdict", "label", "order", "correct", "credit", "scores", "issues", "completion"))
"""The columns of a table of judgements; `verdict`, `order` and `scores` are by the item's own order of responses."""

Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)


def tabulate(scored: Iterable[ScoredItem]) -> pd.DataFrame:
    """Return a table of judgements, sorted by item and by the responses as presented."""
    rows = [
        (*(getattr(each.item, name) for name in ITEM_FIELDS), *each.judgement_row().values())
        for each in sorted(scored, key=lambda each: (each.item.id, each.presented.responses))
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    return table.astype({"verdict": "Int64", "correct": bool, "credit": float})


def read_judgements(path: Path) -> pd.DataFrame:
    """Load a table of judgements; a DataError if it is missing, empty or lacks a column."""
    if not path.is_file():
        expected = "no such file; expected the folder of a run, or a carb/NAME.parquet"
        raise DataError(f"{path}: not a table of judgements: {expected}")
    batches = list(parquet_batches(path))
    rows = Table.from_batches(batches).to_pandas() if batches else pd.DataFrame(columns=list(COLUMNS))
    if lacks := [name for name in COLUMNS if name not in rows]:
        raise DataError(f"{path}: a table of judgements lacks {', '.join(lacks)}; measure again")
    if rows.empty:
        raise DataError(f"{path}: no judgements")
    lists = {name: rows[name].map(tuple) for name in ("responses", "origins", "order", "issues")}
    rows = rows.assign(**lists).astype({"culture": object, "verdict": "Int64"})
    return rows.assign(culture=rows["culture"].where(rows["culture"].notna(), None))


def annotate(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of judgements with what its columns say of each.

    `slot` and `best_slot` are the labels' indices of the chosen response (-1 without a verdict) and of the best one.
    """
    issues = table["issues"].map(set)
    found = table.assign(
        size=table["order"].map(len),
        best_slot=[order.index(best) for order, best in zip(table["order"], table["best"], strict=True)],
        slot=[
            -1 if pd.isna(verdict) else order.index(verdict)
            for order, verdict in zip(table["order"], table["verdict"], strict=True)
        ],
        has_scores=table["scores"].notna(),
        in_format=issues.map(len) == 0,
        parse_failure=table["verdict"].isna() & ~issues.map(VOIDING.isdisjoint).astype(bool),
        too_long=issues.map(is_unanswered).astype(bool),
    )
    kinds = [found["too_long"], found["parse_failure"], found["credit"] == 1, found["credit"] > 0]
    return found.assign(outcome=np.select(kinds, ["too long", "parse failure", "right", "tie"], "wrong"))


_TEXTS = [name for name in (*ITEM_FIELDS, "label", "completion") if name != "best"]


@dataclass(frozen=True, slots=True)
class Judgements:
    """The items of a table of judgements, and its annotated rows without texts: `item` is an index into `items`."""

    items: tuple[Item, ...]  # sorted by id, with their responses in the order of the texts
    every: tuple[Item, ...]  # the same, but with all items of a row of Ties
    group: Codes  # the question group of each item
    rows: pd.DataFrame

    @classmethod
    def of(cls, table: pd.DataFrame, known: dict[str, Item] | None = None) -> Judgements:
        """Return the judgements of a table; items that are equal to one in `known`, by id, share its memory."""
        known, every = {} if known is None else known, list[Item]()
        for row in table.drop_duplicates("id").sort_values("id")[list(ITEM_FIELDS)].to_dict("records"):
            item = Item(**row)  # data sets may store the same responses in any order
            by_text = sorted(range(len(item.responses)), key=item.responses.__getitem__)
            item = reorder_responses(item, by_text)
            every.append(known[item.id] if known.get(item.id) == item else item)
            known.setdefault(item.id, item)
        table = merge_rows(table)
        numbers = {name: number for number, name in enumerate(sorted({*table["id"]}))}
        items = [item for item in every if item.id in numbers]
        rows = annotate(table).assign(item=table["id"].map(numbers)).drop(columns=_TEXTS)
        group = codes([item.group for item in items])
        return cls(tuple(items), tuple(every), group, rows.sort_values("item", kind="stable"))

    @classmethod
    def read(cls, path: Path, known: dict[str, Item] | None = None) -> Judgements:
        """Load the judgements of a file, see `read_judgements`."""
        return cls.of(read_judgements(path), known)

    def by_item(self, name: str) -> Floats:
        """Return the mean of a column over the judgements of each item."""
        means: Floats = self.rows.groupby("item")[name].mean().to_numpy(float)
        return means

    def baselines(self) -> dict[str, Floats]:
        """Return the credit of each item by baseline; a row of Ties needs that of all its items."""
        numbers = {row_name(item.id): number for number, item in enumerate(self.items)}
        place, found = [numbers[row_name(item.id)] for item in self.every], dict[str, Floats]()
        for name, credit in baseline_credits(self.every).items():
            found[name] = np.ones(len(self.items))
            np.multiply.at(found[name], place, credit)
        return found

    def flip_sets(self) -> list[Codes]:
        """Return the indices of the items of each complete flip set; an item may be in several."""
        index_of = {item.id: index for index, item in enumerate(self.items)}
        return [np.array([index_of[item.id] for item in members]) for members in flip_sets(self.items)]


def slot_bias(judged: Judgements, samples: int, seed: int) -> dict[str, Any]:
    """Return by label how much more often its slot is `chosen` than `best`, as shares of n verdicts."""
    # Without models that give scores, which do not see slots.
    listwise = judged.rows[(judged.rows["slot"] >= 0) & ~judged.rows["has_scores"]]
    found = {}
    for slot in range(0 if listwise.empty else listwise["size"].max()):
        offered = listwise[slot < listwise["size"]]
        best, chosen = ((offered[name] == slot).to_numpy(float) for name in ("best_slot", "slot"))
        bias = difference(best, chosen, judged.group[offered["item"]], samples, seed)
        found[LABELS[slot]] = {**Estimate.as_dict(bias, "bias"), "chosen": bias.b, "best": bias.a}
    return found


def order_consistency(judged: Judgements, samples: int, seed: int) -> dict[str, Any]:
    """Return the share of items for which the same response is chosen in all orders, of items with several orders.

    `all_right`, the share that is right in every order, is the consistent accuracy of J1 (arXiv 2505.10320).
    """
    by_item = judged.rows.groupby("item")
    several = by_item["order"].nunique() > 1
    if not several.any():
        return {"n": 0}
    consistent = ((by_item["verdict"].nunique() == 1) & (by_item["slot"].min() >= 0))[several]
    all_right = judged.rows["slot"].eq(judged.rows["best_slot"]).groupby(judged.rows["item"]).all()[several]
    group = judged.group[np.flatnonzero(several)]
    return {
        **accuracy(consistent.to_numpy(float), group, samples, seed).as_dict("consistent"),
        "all_right": accuracy(all_right.to_numpy(float), group, samples, seed).as_dict(),
    }


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Group things by their key, in the order in which they come."""
    parts: dict[Key, list[Thing]] = defaultdict(list)
    for thing in things:
        parts[key(thing)].append(thing)
    return dict(parts)


# --- RewardBench 2's subset Ties (arXiv 2506.01937), counted as its published code does ---
#
# A row has several right answers. It is several items here, one for each right answer (`data/sources/rewardbench2.py`),
# and is right if all of them are. Each prompt has two rows: `tied:K` with several right answers, and `ref:K` with one.

_ITEM = re.compile(r"(?P<row>rewardbench2/.+)/\d+-\d+-of-(?P<right>\d+)x(?P<wrong>\d+)(/pair-\d+)?")
_WEIGHTS = (0.3, 0.3, 0.2, 0.2, 0.01)  # tied rows right, reference rows right, margins, hard margins, their size


def row_name(name: str) -> str:
    """Return the id of an item's row in its data set, given the item's."""
    found = _ITEM.fullmatch(name)
    return found["row"] if found else name


def merge_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return judgements with one item for each row of Ties, which is right if all of the row's items are."""
    # An item that was not taken (too long, or refused) stands for its row, otherwise the first one.
    names = table["id"].map(row_name)
    ties = names != table["id"]
    if not ties.any():
        return table
    worst = table.groupby(names)[["credit", "correct"]].transform("min")
    worst["credit"] = worst["credit"].eq(1).astype(float)  # a wrong answer as good as a right one makes the row wrong
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

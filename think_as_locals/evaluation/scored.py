"""The judgements of a reward model: their table, the credit by item, and the effect of the order of responses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from think_as_locals.data import flip_sets
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.statistics import Difference, Estimate, Floats, accuracy, codes, difference, holm
from think_as_locals.judging import reorder_responses
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.runtime.files import read_parquet, write_parquet
from think_as_locals.types import LABELS, DataError, Item, Judgement, first_of

Outcome = Literal["right", "tie", "wrong", "parse failure", "too long"]
"""The outcome of a judgement; in a tie the best response shares the highest score with others."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

_ITEM = tuple(field.name for field in fields(Item))
_FIELDS = ("prompt", "culture", "language", "domain", "group", "source")
_COLUMNS = (*(*_ITEM, "verdict", "order", "credit", "verdict_only_credit", "scores", "margin", "issues", "completion"),)

_JUDGEMENT = np.dtype(
    [
        ("item", np.int64),  # its place in `Judgements.items`
        ("order", np.int32),  # its place in `Judgements.orders`
        ("size", np.int8),  # number of responses
        ("best", np.int8),  # index among the responses as presented
        ("verdict", np.int8),  # likewise; -1 without one
        ("credit", np.float64),
        ("verdict_only", np.float64),
        ("margin", np.float64),  # NaN without one
        ("has_scores", np.bool_),
        ("parse_failure", np.bool_),
        ("too_long", np.bool_),
    ]
)

Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ItemCredit:
    """An item and its credit in [0, 1], as a mean over the orders in which it was judged."""

    item: Item
    credit: float
    verdict_only: float | None = None  # the credit if the last verdict tag counts


class Judgements:
    """The judgements of a reward model as columns: of a million, objects would take minutes and gigabytes.

    Items are sorted by id, and the judgements of an item by the responses as presented: sums are rounded, so that they
    would depend on any other order.
    """

    def __init__(self, scored: Iterable[ScoredItem]) -> None:
        items, orders = dict[str, tuple[int, Item]](), dict[tuple[int, ...], int]()

        def row(s: ScoredItem) -> tuple[Any, ...]:
            number, _ = items.setdefault(s.item.id, (len(items), s.item))
            verdict = -1 if s.judgement.verdict is None else s.judgement.verdict
            slots = orders.setdefault(s.order, len(orders)), len(s.item.responses), s.presented.best, verdict
            margin = math.nan if s.margin is None else s.margin
            kind = s.scores is not None, s.parse_failure, s.too_long
            return (number, *slots, s.credit, s.verdict_only_credit, margin, *kind)

        rows = np.fromiter(map(row, scored), _JUDGEMENT)
        by_id = [items[name] for name in sorted(items)]
        self.items = tuple(item for _, item in by_id)
        self.group = codes([item.group for item in self.items])  # of each item
        self.orders = list(orders)
        places = np.empty(len(by_id), np.int64)
        places[[number for number, _ in by_id]] = np.arange(len(by_id))
        rows["item"] = places[rows["item"]]
        self.rows = rows[np.argsort(rows["item"], kind="stable")]
        for part in self.of_several():
            part[:] = part[sorted(range(len(part)), key=[self._presented(each) for each in part].__getitem__)]

    def of_several(self) -> Iterator[NDArray[np.void]]:
        """Yield the judgements of each item that has more than one."""
        starts = np.flatnonzero(np.diff(self.rows["item"], prepend=-1))
        ends = np.append(starts[1:], len(self.rows))
        several = ends - starts > 1
        for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
            yield self.rows[start:end]

    def by_item(self, name: str) -> Floats:
        """Return the mean of a column over the judgements of each item."""
        found = np.empty(len(self.items))
        found[self.rows["item"]] = self.rows[name]
        for part in self.of_several():
            found[part["item"][0]] = math.fsum(part[name]) / len(part)
        return found

    def _presented(self, row: Any) -> tuple[str, ...]:
        responses = self.items[row["item"]].responses
        return tuple(responses[i] for i in self.orders[row["order"]])


def read_scored(path: Path, known: dict[str, Item] | None = None) -> list[ScoredItem]:
    """Load a table of judgements, as `written` writes it; a DataError if it is empty or a row is faulty.

    Items that are in `known`, by id, are reused, and the others are added to it.
    """
    if not path.is_file():
        expected = "no such file; expected the folder of a run, or a carb/NAME.parquet"
        raise DataError(f"{path}: not a readable table of judgements: {expected}")
    known = {} if known is None else known
    scored, items = list[ScoredItem](), dict[str, Item]()
    for row in read_parquet(path):
        if lacks := [name for name in _COLUMNS if name not in row]:
            raise DataError(f"{path}: a table of judgements lacks {', '.join(lacks)}; measure again")
        try:
            each = _scored_item(row, known)
        except (DataError, ValueError, TypeError) as error:
            raise DataError(f"{path}: {error}") from error
        if items.setdefault(each.item.id, each.item) != each.item:
            raise DataError(f"{path}: several items are called {each.item.id!r}")
        scored.append(each)
    if not scored:
        raise DataError(f"{path}: no judgements")
    return scored


def written(path: Path, scored: Iterable[ScoredItem]) -> Iterator[ScoredItem]:
    """Yield judgements, and write them as the table that `read_scored` loads, which is there when all are taken."""
    import pyarrow as pa

    text, number, index = pa.string(), pa.float64(), pa.int64()
    types = dict.fromkeys((*_ITEM, "label", "completion"), text)
    types |= dict.fromkeys(("responses", "origins", "issues"), pa.list_(text))
    types |= dict.fromkeys(("credit", "verdict_only_credit", "margin"), number)
    types |= {"best": index, "verdict": index, "order": pa.list_(index), "scores": pa.list_(number)}
    types["correct"] = pa.bool_()
    return write_parquet(path, scored, ScoredItem.row, pa.schema(types))


def in_text_order(item: Item) -> Item:
    """Return an item with its responses in the order of their texts: data sets may store the same ones in any order."""
    return reorder_responses(item, sorted(range(len(item.responses)), key=item.responses.__getitem__))


def _scored_item(row: dict[str, Any], known: dict[str, Item]) -> ScoredItem:
    item = known.get(row["id"])
    if item is None or not _is_row_of(item, row):
        item = in_text_order(Item(**{name: row[name] for name in _ITEM}))
        known.setdefault(item.id, item)
    order, verdict, credit = row["order"], row["verdict"], row["credit"]
    if sorted(order) != (places := list(range(len(item.responses)))):
        raise DataError(f"item {item.id!r}: order must have each of {places} once, got {order}")
    if verdict is not None and verdict not in places:
        raise DataError(f"item {item.id!r}: verdict must be one of {places} or none, got {verdict!r}")
    scored = ScoredItem(
        item=item,
        presented=reorder_responses(item, [item.responses.index(row["responses"][i]) for i in order]),
        judgement=Judgement(
            verdict=None if verdict is None else order.index(verdict),
            rubric=None,
            analysis=None,
            issues=tuple(row["issues"]),
            completion=row["completion"],
        ),
        scores=None if row["scores"] is None else tuple(row["scores"][i] for i in order),
        margin=row["margin"],
        parse_failure_credit=credit,
        tagged_credit=row["verdict_only_credit"],
    )
    for name, value in (("credit", credit), ("verdict_only_credit", row["verdict_only_credit"])):
        if not isinstance(value, float) or not 0 <= value <= 1:
            raise DataError(f"item {row['id']!r}: {name} must be in [0, 1], got {value}")
    if credit != scored.credit:
        raise DataError(f"item {row['id']!r}: credit must be that of its verdict or scores, got {credit}")
    return scored


def _is_row_of(item: Item, row: dict[str, Any]) -> bool:
    """Return whether an item is that of a row, perhaps with its responses in another order."""
    there, origins = row["responses"] or [], row["origins"] or []
    if sorted(item.responses) != sorted(there) or any(getattr(item, name) != row[name] for name in _FIELDS):
        return False
    places = [there.index(response) for response in item.responses]
    moved = [origins[i] for i in places] if len(origins) == len(there) else origins
    return places[item.best] == row["best"] and list(item.origins) == moved


def outcome(scored: ScoredItem) -> Outcome:
    """Return the outcome of a judgement."""
    if scored.too_long:
        return "too long"
    if scored.parse_failure:
        return "parse failure"
    return "right" if scored.credit == 1 else "tie" if scored.credit > 0 else "wrong"


def too_long_note(how: str, ids: Sequence[str]) -> str:
    """Return how many items are too long, how they count (`exclude` or `wrong`), and the first of their ids."""
    counted = {"exclude": "left out", "wrong": "counted as wrong"}[how]
    return f"{len(ids)} items too long for it, {counted}: {first_of(ids, 5)}"


def item_credits(scored: Sequence[ScoredItem]) -> list[ItemCredit]:
    """Return each item once, with its credit, in the order of their first judgements."""
    return [
        ItemCredit(
            judgements[0].item,
            math.fsum(s.credit for s in judgements) / len(judgements),
            math.fsum(s.verdict_only_credit for s in judgements) / len(judgements),
        )
        for judgements in grouped(scored, lambda s: s.item.id).values()
    ]


def verdict_only(credited: Sequence[ItemCredit]) -> list[ItemCredit]:
    """Return items with their credit by the last verdict tags."""
    return [ItemCredit(c.item, c.credit if c.verdict_only is None else c.verdict_only) for c in credited]


def on_flip_sets(credited: Sequence[ItemCredit]) -> list[ItemCredit]:
    """Return the items of complete flip sets, set by set; an item counts once for each of its sets."""
    by_id = {each.item.id: each for each in credited}
    return [by_id[item.id] for item in chain.from_iterable(flip_sets([each.item for each in credited]))]


def estimate_credits(
    credited: Sequence[ItemCredit], samples: int = 2000, seed: int = 0, over_cells: bool = False
) -> Estimate:
    """Return the accuracy on items; with `over_cells`, the mean of the means over cells of culture and domain."""
    cells = [BREAKDOWNS["cell"](c.item) for c in credited] if over_cells else None
    return accuracy([c.credit for c in credited], [c.item.group for c in credited], samples, seed, cells)


def paired_differences(
    pairs: Sequence[tuple[Sequence[ItemCredit], Sequence[ItemCredit]]], over_cells: bool = False
) -> list[tuple[Difference, float]]:
    """Return for each pair of runs on the same items how much more the second scores, and p adjusted over the pairs."""
    found = []
    for a, b in pairs:
        cells = [BREAKDOWNS["cell"](c.item) for c in a] if over_cells else None
        columns = [c.credit for c in a], [c.credit for c in b], [c.item.group for c in a]
        found.append(difference(*columns, cells=cells))
    return list(zip(found, holm([each.p for each in found]), strict=True))


def slot_bias(judged: Judgements, samples: int, seed: int) -> dict[str, Any]:
    """Return by label how much more often its slot is `chosen` than `best`, as shares of n verdicts."""
    # Without models that give scores, which do not see slots.
    listwise = judged.rows[(judged.rows["verdict"] >= 0) & ~judged.rows["has_scores"]]
    found = {}
    for slot in range(listwise["size"].max(initial=0)):
        offered = listwise[slot < listwise["size"]]
        best, chosen = ((offered[name] == slot).astype(float) for name in ("best", "verdict"))
        bias = difference(best, chosen, judged.group[offered["item"]], samples, seed)
        found[LABELS[slot]] = {**Estimate.as_dict(bias, "bias"), "chosen": bias.b, "best": bias.a}
    return found


def order_consistency(judged: Judgements, samples: int, seed: int) -> dict[str, Any]:
    """Return the share of items for which the same response is chosen in all orders, of items with several orders.

    `all_right`, the share that is right in every order, is the consistent accuracy of J1 (arXiv 2505.10320).
    """
    places, consistent, all_right = list[int](), list[float](), list[float]()
    for part in judged.of_several():
        if (part["order"] != part["order"][0]).any():
            choices = zip(part["order"].tolist(), part["verdict"].tolist(), strict=True)
            chosen = {judged.orders[order][verdict] if verdict >= 0 else -1 for order, verdict in choices}
            places.append(part["item"][0])
            consistent.append(float(len(chosen) == 1 and -1 not in chosen))
            all_right.append(float((part["verdict"] == part["best"]).all()))
    if not places:
        return {"n": 0}
    return {
        **accuracy(consistent, judged.group[places], samples, seed).as_dict("consistent"),
        "all_right": accuracy(all_right, judged.group[places], samples, seed).as_dict(),
    }


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Group things by their key, in the order in which they come."""
    parts: dict[Key, list[Thing]] = defaultdict(list)
    for thing in things:
        parts[key(thing)].append(thing)
    return dict(parts)


def with_cultures(
    things: Sequence[Thing], summarise: Callable[[Sequence[Thing]], dict[str, Any]], item: Callable[[Thing], Item]
) -> dict[str, Any]:
    """Return the summary of things about items, and the summaries of each culture under `by_culture`."""
    cultures = grouped(things, lambda thing: BREAKDOWNS["culture"](item(thing)))
    return {**summarise(things), "by_culture": {name: summarise(part) for name, part in sorted(cultures.items())}}

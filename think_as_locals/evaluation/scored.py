"""The judgements of a reward model: their table, the credit by item, and the effect of the order of responses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from think_as_locals.data import flip_sets
from think_as_locals.evaluation.breakdowns import BREAKDOWNS
from think_as_locals.evaluation.statistics import Codes, Estimate, Floats, accuracy, codes, difference
from think_as_locals.judging import reorder_responses
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.runtime.files import parquet_batches, write_parquet
from think_as_locals.types import LABELS, DataError, Item, Judgement, first_of

if TYPE_CHECKING:
    import pyarrow

JudgementOutcome = Literal["right", "tie", "wrong", "parse failure", "too long"]
"""The outcome of a judgement; in a tie the best response shares the highest score with others."""

OUTCOMES: tuple[JudgementOutcome, ...] = get_args(JudgementOutcome)

_ITEM = tuple(field.name for field in fields(Item))
_FIELDS = ("prompt", "culture", "language", "domain", "group", "source")
_COLUMNS = (*_ITEM, "verdict", "order", "credit", "verdict_only_credit", "scores", "margin", "issues", "completion")

_ROW_TYPE = np.dtype(
    [
        ("item", np.int64),  # its index in `Judgements.items`
        ("order", np.int32),  # its index in `Judgements.orders`
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


class Judgements:
    """The judgements of a reward model as columns: of a million, objects would take minutes and gigabytes.

    Items are sorted by id, and the judgements of an item by the responses as presented: sums are rounded, so that they
    would depend on any other order.
    """

    def __init__(self, scored: Iterable[ScoredItem]) -> None:
        numbers, items, orders = dict[str, int](), list[Item](), dict[tuple[int, ...], int]()

        def row(s: ScoredItem) -> tuple[Any, ...]:
            index, order = numbers.setdefault(s.item.id, len(items)), orders.setdefault(s.order, len(orders))
            if index == len(items):
                items.append(s.item)
            slots = len(s.item.responses), s.presented.best, -1 if s.judgement.verdict is None else s.judgement.verdict
            margin = math.nan if s.margin is None else s.margin
            kind = s.scores is not None, s.parse_failure, s.too_long
            return (index, order, *slots, s.credit, s.verdict_only_credit, margin, *kind)

        rows: Any = np.fromiter(map(row, scored), _ROW_TYPE)  # whose columns numpy does not type
        by_id = [numbers[name] for name in sorted(numbers)]
        self.items = tuple(items[number] for number in by_id)
        self.group = codes([item.group for item in self.items])  # of each item
        self.orders = list(orders)
        new_indices = np.empty(len(by_id), np.int64)
        new_indices[by_id] = np.arange(len(by_id))
        rows["item"] = new_indices[rows["item"]]
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

    def flip_sets(self) -> Codes:
        """Return the indices of the items of complete flip sets, set by set; an item is there once for each set."""
        index_of = {item.id: index for index, item in enumerate(self.items)}
        return np.array([index_of[item.id] for members in flip_sets(self.items) for item in members], np.intp)

    def _presented(self, row: Any) -> tuple[str, ...]:
        responses = self.items[row["item"]].responses
        return tuple(responses[i] for i in self.orders[row["order"]])


def read_scored(path: Path, known: dict[str, Item] | None = None, only: Set[str] | None = None) -> Iterator[ScoredItem]:
    """Yield the rows of a table of judgements, as `written` writes it; a DataError if it is empty or a row is faulty.

    Items that are in `known`, by id, are reused, and the others are added to it. Rows of items that are not among the
    ids in `only` are skipped.
    """
    known, items = {} if known is None else known, dict[str, Item]()
    for batch in _batches(path):
        if only is not None:
            batch = batch.filter([name in only for name in batch["id"].to_pylist()])
        try:
            for row in batch.to_pylist():
                each = _scored_item(row, known)
                first = items.setdefault(each.item.id, each.item)
                if first is not each.item and first != each.item:
                    raise DataError(f"several items are called {first.id!r}")
                yield each
        except (DataError, ValueError, TypeError) as error:
            raise DataError(f"{path}: {error}") from error
    if not items and only is None:
        raise DataError(f"{path}: no judgements")


def _batches(path: Path) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a table of judgements, some at a time; a DataError if it lacks a column."""
    if not path.is_file():
        expected = "no such file; expected the folder of a run, or a carb/NAME.parquet"
        raise DataError(f"{path}: not a readable table of judgements: {expected}")
    for batch in parquet_batches(path):
        if lacks := [name for name in _COLUMNS if name not in batch.schema.names]:
            raise DataError(f"{path}: a table of judgements lacks {', '.join(lacks)}; measure again")
        yield batch


def written(path: Path, scored: Iterable[ScoredItem]) -> Iterator[ScoredItem]:
    """Yield the judgements while writing them; the file appears once all are consumed."""
    import pyarrow as pa

    def table(some: list[ScoredItem]) -> pa.Table:
        rows = [s.judgement_row() for s in some]
        of_rows = {f.name: pa.array([row[f.name] for row in rows], f.type) for f in _schema() if f.name not in _ITEM}
        return pa.table({**_item_columns([s.item for s in some]), **of_rows})

    return write_parquet(path, scored, table, _schema())


@cache
def _schema() -> pyarrow.Schema:
    """Return the columns of a table of judgements, those of the item first."""
    import pyarrow as pa

    text, number, index = pa.string(), pa.float64(), pa.int64()
    types = dict.fromkeys((*_ITEM, "label", "completion"), text)
    types |= dict.fromkeys(("responses", "origins", "issues"), pa.list_(text))
    types |= dict.fromkeys(("credit", "verdict_only_credit", "margin"), number)
    types |= {"best": index, "verdict": index, "order": pa.list_(index), "scores": pa.list_(number)}
    types["correct"] = pa.bool_()
    return pa.schema(types)


def _item_columns(items: Sequence[Item]) -> dict[str, pyarrow.Array]:
    """Return the columns of a table that describe items."""
    import pyarrow as pa

    return {name: pa.array(list(map(attrgetter(name), items)), _schema().field(name).type) for name in _ITEM}


def in_text_order(item: Item) -> Item:
    """Return an item with its responses in the order of their texts: data sets may store the same ones in any order."""
    return reorder_responses(item, sorted(range(len(item.responses)), key=item.responses.__getitem__))


def _scored_item(row: dict[str, Any], known: dict[str, Item]) -> ScoredItem:
    item = known.get(row["id"])
    if item is None or not _is_row_of(item, row):
        item = in_text_order(Item(**{name: row[name] for name in _ITEM}))
        known.setdefault(item.id, item)
    order, verdict, credit = row["order"], row["verdict"], row["credit"]
    if sorted(order) != (indices := list(range(len(item.responses)))):
        raise DataError(f"item {item.id!r}: order must have each of {indices} once, got {order}")
    if verdict is not None and verdict not in indices:
        raise DataError(f"item {item.id!r}: verdict must be one of {indices} or none, got {verdict!r}")
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
    indices = [there.index(response) for response in item.responses]
    moved = [origins[i] for i in indices] if len(origins) == len(there) else origins
    return indices[item.best] == row["best"] and list(item.origins) == moved


def outcome(scored: ScoredItem) -> JudgementOutcome:
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
    indices, consistent, all_right = list[int](), list[float](), list[float]()
    for part in judged.of_several():
        if (part["order"] != part["order"][0]).any():
            choices = zip(part["order"].tolist(), part["verdict"].tolist(), strict=True)
            chosen = {judged.orders[order][verdict] if verdict >= 0 else -1 for order, verdict in choices}
            indices.append(part["item"][0])
            consistent.append(float(len(chosen) == 1 and -1 not in chosen))
            all_right.append(float((part["verdict"] == part["best"]).all()))
    if not indices:
        return {"n": 0}
    return {
        **accuracy(consistent, judged.group[indices], samples, seed).as_dict("consistent"),
        "all_right": accuracy(all_right, judged.group[indices], samples, seed).as_dict(),
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

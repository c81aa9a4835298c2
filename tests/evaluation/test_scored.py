"""Slot bias, order consistency, and tables of judgements: hand-made cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from items import make_item, row_of

from think_as_locals.evaluation import scored as orders
from think_as_locals.judging import reorder_responses
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.types import DataError, Item, Judgement


def slot_bias(predictions: Sequence[ScoredItem]) -> dict[str, Any]:
    return orders.slot_bias(orders.Judgements(predictions), samples=500, seed=0)


def order_consistency(predictions: Sequence[ScoredItem]) -> dict[str, Any]:
    return orders.order_consistency(orders.Judgements(predictions), samples=500, seed=0)


def an_item(number: int, size: int = 2) -> Item:
    responses = tuple(f"answer {i} to {number}" for i in range(size))
    return make_item(id=str(number), responses=responses, group=f"g{number}")


def judged(item: Item, order: tuple[int, ...], verdict: int | None) -> ScoredItem:
    judgement = Judgement(verdict=verdict, rubric=None, analysis=None, issues=(), completion="")
    return ScoredItem(item=item, presented=reorder_responses(item, order), judgement=judgement)


def test_judge_that_always_chooses_a_has_full_slot_bias() -> None:
    found = slot_bias([judged(an_item(i), (0, 1) if i % 2 else (1, 0), 0) for i in range(20)])
    assert set(found) == {"A", "B"}
    assert (found["A"]["chosen"], found["A"]["best"], found["A"]["bias"]) == (1.0, 0.5, 0.5)
    assert found["B"]["bias"] == -0.5
    assert found["A"]["ci95"][0] > 0
    assert found["A"]["ci95"] == pytest.approx([-end for end in reversed(found["B"]["ci95"])])


def test_judge_that_is_always_right_has_no_slot_bias() -> None:
    found = slot_bias([judged(an_item(i), (0, 1) if i % 3 else (1, 0), 0 if i % 3 else 1) for i in range(21)])
    assert [slot["bias"] for slot in found.values()] == [0.0, 0.0]
    assert all(slot["ci95"][0] < 0 < slot["ci95"][1] for slot in found.values())


def test_slot_bias_counts_only_offered_slots_with_a_verdict() -> None:
    predictions = [
        judged(an_item(1), (0, 1), 0),
        judged(an_item(2, size=4), (0, 1, 2, 3), 3),
        judged(an_item(3), (0, 1), None),
    ]
    found = slot_bias(predictions)
    assert {label: slot["n"] for label, slot in found.items()} == {"A": 2, "B": 2, "C": 1, "D": 1}
    assert found["D"]["chosen"] == 1.0


def test_slot_bias_is_empty_without_verdicts_or_with_scores() -> None:
    assert slot_bias([judged(an_item(1), (0, 1), None)]) == {}
    assert slot_bias([replace(judged(an_item(1), (0, 1), 0), scores=(2.0, 1.0))]) == {}


def test_order_consistency_is_empty_for_items_in_one_order() -> None:
    assert order_consistency([judged(an_item(i), (0, 1), 0) for i in range(3)]) == {"n": 0}
    assert order_consistency([judged(an_item(1), (0, 1), 0)] * 2) == {"n": 0}


def test_order_consistency_means_the_same_response_in_every_order() -> None:
    there, back = (0, 1), (1, 0)
    predictions = [
        *(judged(an_item(1), there, 0), judged(an_item(1), back, 1)),  # right in both
        *(judged(an_item(2), there, 1), judged(an_item(2), back, 0)),  # wrong in both
        *(judged(an_item(3), there, 0), judged(an_item(3), back, 0)),  # the slot, not the response
        *(judged(an_item(4), there, 0), judged(an_item(4), back, None)),  # a parse failure once
        *(judged(an_item(5), there, None), judged(an_item(5), back, None)),  # a parse failure twice
        judged(an_item(6), there, 0),  # judged once
    ]
    found = order_consistency(predictions)
    assert (found["n"], found["consistent"]) == (5, pytest.approx(2 / 5))
    assert (found["all_right"]["n"], found["all_right"]["accuracy"]) == (5, pytest.approx(1 / 5))
    low, high = found["ci95"]
    assert 0 <= low < 2 / 5 < high <= 1
    assert order_consistency(predictions[::-1])["ci95"] == pytest.approx([low, high])


def test_judgements_are_sorted_independently_of_input_order() -> None:
    predictions = [judged(an_item(i), order, i % 2) for i in (3, 1, 2) for order in ((0, 1), (1, 0))]
    there, back = orders.Judgements(predictions), orders.Judgements(predictions[::-1])
    assert [item.id for item in there.items] == [item.id for item in back.items] == ["1", "2", "3"]
    shown = [(each.rows["item"], [each.orders[i] for i in each.rows["order"]]) for each in (there, back)]
    assert shown[0][0].tolist() == shown[1][0].tolist() == [0, 0, 1, 1, 2, 2]
    assert shown[0][1] == shown[1][1]
    assert there.by_item("credit").tolist() == [0.5, 0.5, 0.5]


def test_table_is_written_only_after_all_judgements(tmp_path: Path) -> None:
    predictions = [judged(an_item(i), (1, 0), 0) for i in range(3)]
    stopped = orders.written(tmp_path / "table.parquet", predictions)
    next(stopped)
    stopped.close()
    assert not list(tmp_path.iterdir())
    assert list(orders.written(tmp_path / "table.parquet", predictions)) == predictions
    assert [row_of(each) for each in orders.read_scored(tmp_path / "table.parquet")] == [row_of(p) for p in predictions]


def test_read_scored_reuses_known_equal_items(tmp_path: Path) -> None:
    items = [an_item(i) for i in range(3)]
    list(orders.written(tmp_path / "table.parquet", [judged(item, (0, 1), 1) for item in items]))
    same, turned, other = items[0], reorder_responses(items[1], (1, 0)), replace(items[2], prompt="Another?")
    found = list(orders.read_scored(tmp_path / "table.parquet", {item.id: item for item in (same, turned, other)}))
    assert found[0].item is same
    assert found[1].item is turned
    assert found[1].presented == items[1]
    assert found[2].item == items[2]


def presented(judged: orders.Judgements) -> list[list[str]]:
    return [[judged.items[row["item"]].responses[i] for i in judged.orders[row["order"]]] for row in judged.rows]


def predictions_of_all_kinds() -> list[ScoredItem]:
    right = judged(an_item(1), (1, 0), 1)
    return [
        *(right, judged(an_item(1), (0, 1), 1)),  # one item in two orders
        replace(judged(an_item(2, size=4), (3, 0, 2, 1), None), scores=(1.0, 0.5, 1.0, 1.0)),  # a tie
        replace(judged(an_item(3), (0, 1), 1), scores=(0.5, 2.0), margin=1.5),
        replace(right, item=an_item(4), presented=an_item(4), parse_failure_credit=0.5, tagged_credit=1 / 3),
        failed(an_item(5), "no_verdict", parse_failure_credit=0.5),
        failed(an_item(6), "too_long"),
    ]


def failed(item: Item, issue: str, **changes: Any) -> ScoredItem:
    without = judged(item, (1, 0), None)
    return replace(without, judgement=replace(without.judgement, issues=(issue,)), **changes)


@pytest.mark.parametrize("known", ["none", "same", "turned", "other"])
def test_judgements_survive_a_round_trip_through_a_table(known: str, tmp_path: Path) -> None:
    predictions, path = predictions_of_all_kinds(), tmp_path / "table.parquet"
    expected = orders.Judgements(orders.written(path, predictions))
    changed = {
        "none": {},
        "same": {p.item.id: p.item for p in predictions},
        "turned": {p.item.id: reorder_responses(p.item, range(len(p.item.responses))[::-1]) for p in predictions},
        "other": {"3": an_item(3, size=4)},
    }[known]
    found = orders.Judgements(orders.read_scored(path, changed))
    assert [item.id for item in found.items] == [item.id for item in expected.items] == list("123456")
    for name in set(expected.rows.dtype.names) - {"order"}:
        np.testing.assert_array_equal(found.rows[name], expected.rows[name], name)
    assert presented(found) == presented(expected)


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("order", [0, 0], r"order must have each of \[0, 1\] once, got \[0, 0\]"),
        ("order", [0], "order must have each of"),
        ("order", None, "NoneType"),
        ("verdict", 2, r"verdict must be one of \[0, 1\] or none, got 2"),
        ("verdict", -1, r"verdict must be one of \[0, 1\] or none, got -1"),
        ("verdict", 1, "credit must be that of its verdict or scores, got 1.0"),
        ("credit", 0.5, "credit must be that of its verdict or scores, got 0.5"),
        ("credit", 2.0, r"credit must be in \[0, 1\], got 2.0"),
        ("credit", None, r"credit must be in \[0, 1\], got None"),
        ("verdict_only_credit", float("nan"), r"verdict_only_credit must be in \[0, 1\], got nan"),
        ("scores", [1.0, 1.0], "credit must be that of its verdict or scores, got 1.0"),
        ("best", 7, "best must be an index from 0 to 1"),
        ("id", "1", "several items are called '1'"),
    ],
)
def test_invalid_row_of_a_table_is_reported(column: str, value: Any, fault: str, tmp_path: Path) -> None:
    predictions, path = [judged(an_item(i), (0, 1), 0) for i in range(4)], tmp_path / "table.parquet"
    assert len(list(orders.written(path, predictions))) == 4
    table = pa.parquet.read_table(path)
    values = [value if place == 2 else each for place, each in enumerate(table[column].to_pylist())]
    at = table.schema.get_field_index(column)
    pa.parquet.write_table(table.set_column(at, column, pa.array(values, table.schema.field(column).type)), path)
    for known in ({}, {p.item.id: p.item for p in predictions}):
        with pytest.raises(DataError, match=f"table.parquet: .*{fault}"):
            list(orders.read_scored(path, dict(known)))

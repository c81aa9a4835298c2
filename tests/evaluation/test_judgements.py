"""Slot bias, order consistency, and tables of judgements: hand-made cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluation.judged import judgement
from items import make_item

from think_as_locals.evaluation import judgements as orders
from think_as_locals.evaluation.judgements import Judgements, annotate, read_judgements, tabulate
from think_as_locals.judging import reorder_responses
from think_as_locals.reward_models.reward_model import ScoredItem
from think_as_locals.types import DataError, Item


def slot_bias(predictions: Sequence[ScoredItem]) -> dict[str, Any]:
    return orders.slot_bias(Judgements.of(tabulate(predictions)), samples=500, seed=0)


def order_consistency(predictions: Sequence[ScoredItem]) -> dict[str, Any]:
    return orders.order_consistency(Judgements.of(tabulate(predictions)), samples=500, seed=0)


def an_item(number: int, size: int = 2) -> Item:
    responses = tuple(f"answer {i} to {number}" for i in range(size))
    return make_item(id=str(number), responses=responses, group=f"g{number}")


def judged(item: Item, order: tuple[int, ...], verdict: int | None) -> ScoredItem:
    return ScoredItem(item=item, presented=reorder_responses(item, order), judgement=judgement(verdict))


def test_slot_bias_is_all_of_a_judge_that_always_chooses_a_and_none_of_one_that_is_right() -> None:
    found = slot_bias([judged(an_item(i), (0, 1) if i % 2 else (1, 0), 0) for i in range(20)])
    assert set(found) == {"A", "B"}
    assert (found["A"]["chosen"], found["A"]["best"], found["A"]["bias"]) == (1.0, 0.5, 0.5)
    assert found["B"]["bias"] == -0.5
    assert found["A"]["ci95"][0] > 0
    assert found["A"]["ci95"] == pytest.approx([-end for end in reversed(found["B"]["ci95"])])
    found = slot_bias([judged(an_item(i), (0, 1) if i % 3 else (1, 0), 0 if i % 3 else 1) for i in range(21)])
    assert [slot["bias"] for slot in found.values()] == [0.0, 0.0]
    assert all(slot["ci95"][0] < 0 < slot["ci95"][1] for slot in found.values())


def test_slot_bias_counts_only_offered_slots_with_a_verdict() -> None:
    one, cut = judged(an_item(1), (0, 1), 0), judged(an_item(3), (0, 1), None)
    found = slot_bias([one, judged(an_item(2, size=4), (0, 1, 2, 3), 3), cut])
    assert {label: slot["n"] for label, slot in found.items()} == {"A": 2, "B": 2, "C": 1, "D": 1}
    assert found["D"]["chosen"] == 1.0
    assert slot_bias([cut]) == slot_bias([replace(one, scores=(2.0, 1.0))]) == {}


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
    assert order_consistency([judged(an_item(i), (0, 1), 0) for i in range(3)]) == {"n": 0}
    assert order_consistency([judged(an_item(1), (0, 1), 0)] * 2) == {"n": 0}


def test_equal_items_share_memory_whatever_the_order_of_their_responses() -> None:
    table = tabulate([judged(an_item(i), (0, 1), 1) for i in range(3)])
    known = {item.id: item for item in (an_item(0), replace(an_item(2), prompt="Another?"))}
    found = Judgements.of(table, dict(known))
    assert found.items[0] is known["0"]
    assert found.items[2] == an_item(2)
    turned = tabulate([judged(reorder_responses(an_item(i), (1, 0)), (0, 1), 1) for i in range(3)])
    assert Judgements.of(turned).items == found.items


def predictions_of_all_kinds() -> list[ScoredItem]:
    right = judged(an_item(1), (1, 0), 1)
    return [
        *(right, judged(an_item(1), (0, 1), 1)),  # one item in two orders
        replace(judged(an_item(2, size=4), (3, 0, 2, 1), None), scores=(0.5, 1.0, 1.0, 1.0)),  # a tie
        replace(judged(an_item(3), (0, 1), 1), scores=(0.5, 2.0)),
        replace(right, item=an_item(4), presented=an_item(4), parse_failure_credit=0.5),
        replace(failed(an_item(5), "verdict_once"), parse_failure_credit=0.5),
        failed(an_item(6), "too_long"),
        failed(an_item(7), "refused"),
    ]


def failed(item: Item, issue: str) -> ScoredItem:
    return replace(judged(item, (1, 0), None), judgement=judgement(None, issue))


def test_annotated_table_says_what_became_of_each_judgement(tmp_path: Path) -> None:
    table = tabulate(predictions_of_all_kinds())
    found = annotate(table)
    outcomes = ("right", "tie", "wrong", "wrong", "parse failure", "too long", "too long")
    assert dict(zip(found["id"], found["outcome"], strict=True)) == dict(zip("1234567", outcomes, strict=True))
    assert (found["parse_failure"].sum(), found["too_long"].sum()) == (1, 2)
    assert found["has_scores"].sum() == 2
    assert set(found["outcome"]) == {*orders.OUTCOMES}
    for row in found.itertuples():
        assert row.order[row.best_slot] == row.best
        assert row.slot == (-1 if row.label is None else "ABCD".index(row.label))


def test_judgements_survive_a_round_trip_through_a_table(tmp_path: Path) -> None:
    table = tabulate(predictions_of_all_kinds())
    table.to_parquet(tmp_path / "table.parquet", index=False)
    read, expected = Judgements.read(tmp_path / "table.parquet"), Judgements.of(table)
    assert read.items == expected.items
    for name in ("item", "order", "slot", "best_slot", "credit", "issues", "outcome"):
        assert read.rows[name].tolist() == expected.rows[name].tolist(), name


def test_unusable_table_is_a_data_error(tmp_path: Path) -> None:
    table, path = tabulate([judged(an_item(1), (0, 1), 0)]), tmp_path / "table.parquet"
    for content in (table.drop(columns="issues"), table[:0]):
        content.to_parquet(path, index=False)
        with pytest.raises(DataError, match=r"table\.parquet: (a table of judgements lacks issues|no judgements)"):
            read_judgements(path)
    path.write_bytes(b"torn")
    for file in (path, tmp_path / "gone.parquet"):
        with pytest.raises(DataError, match=r"parquet: not a (readable )?table"):
            read_judgements(file)

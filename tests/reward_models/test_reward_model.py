"""Predictions of reward models: credit and flat row, and items that are too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from items import make_item, row_of

from think_as_locals.reward_models.reward_model import (
    Answer,
    Answered,
    Request,
    ScoredItem,
    apply_too_long,
    combine,
    query_fitting,
)
from think_as_locals.types import Item, Judgement, TooLongError

ITEM = make_item(best=1)
TURNED = replace(ITEM, responses=("With a nod.", "With a bow.", "With a wai."), best=2)


def scored(verdict: int | None, *issues: str, presented: Item = ITEM, **changes: Any) -> ScoredItem:
    judgement = Judgement(verdict=verdict, rubric=None, analysis=None, issues=issues, completion="the completion")
    return ScoredItem(item=ITEM, presented=presented, judgement=judgement, **changes)


def test_row_is_in_item_order_and_correct_if_the_verdict_is_the_best() -> None:
    row = row_of(scored(0, presented=TURNED))
    assert [row["responses"][i] for i in row["order"]] == ["With a nod.", "With a bow.", "With a wai."]
    assert (row["responses"][row["verdict"]], row["label"], row["correct"]) == ("With a nod.", "A", False)
    assert row["responses"][row["best"]] == "With a wai."
    described = tuple(row[name] for name in ("id", "culture", "domain", "language", "group"))
    assert described == ("th-1", "TH", "value", "en", "greeting")
    assert (row["issues"], row["completion"]) == ([], "the completion")
    failed = row_of(scored(None, "finished"))
    assert (failed["verdict"], failed["correct"], failed["issues"]) == (None, False, ["finished"])
    assert [scored(verdict, presented=TURNED).correct for verdict in (0, 1, 2, None)] == [False, False, True, False]


class Selective:
    """Takes every third item; the next is too long, the one after it refused, which it says at last if `late`."""

    def __init__(self, late: bool) -> None:
        self.late = late
        self.asked: list[str] = []

    def query(self, requests: Sequence[Request]) -> Answered:
        kinds = [int(request.item.id) % 3 for request in requests]
        for i, request in enumerate(requests):
            if kinds[i] == 0 and (self.late or not any(kinds)):
                self.asked.append(request.item.id)
                yield i, {"score": float(request.item.id)}
        if not_taken := [i for i, kind in enumerate(kinds) if kind]:
            raise TooLongError("too much", not_taken, refused=[i for i in not_taken if kinds[i] == 2])

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[ScoredItem]:
        return [ScoredItem(item=item, presented=item, judgement=scored(item.best).judgement)]


@pytest.mark.parametrize("late", [False, True])
def test_items_that_are_too_long_or_refused_are_skipped_and_settled_as_configured(late: bool) -> None:
    items, rm = [make_item(id=str(i), best=1) for i in range(5)], Selective(late)
    answers = dict(query_fitting(rm, [Request(item, (0,)) for item in items]))  # type: ignore[arg-type]
    long, refused = {"too_long": "too much"}, {"refused": "too much"}
    assert answers == {0: {"score": 0.0}, 1: long, 2: refused, 3: {"score": 3.0}, 4: long}
    assert rm.asked == ["0", "3"]
    every = list(combine(rm, [(item, [answers[i]]) for i, item in enumerate(items)]))  # type: ignore[arg-type]
    assert [one.judgement.issues for one in every] == [(), ("too_long",), ("refused",), (), ("too_long",)]
    assert [one.too_long for one in every] == [False, True, True, False, True]
    assert not any(one.parse_failure for one in every)
    assert [(one.item.id, one.credit) for one in apply_too_long(every, "exclude")] == [("0", 1.0), ("3", 1.0)]
    assert list(apply_too_long(every, "wrong")) == every
    assert [one.credit for one in every] == [1, 0, 0, 1, 0]
    with pytest.raises(TooLongError, match=r"3 of 5 items are too long, or refused: '1', '2', '4'\. too much\. eval"):
        list(apply_too_long(every, "error"))
    with pytest.raises(TooLongError, match="1 of 1 items are too long, or refused"):
        list(apply_too_long(every[1:2], "wrong"))

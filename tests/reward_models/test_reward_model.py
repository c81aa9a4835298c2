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
    favourite,
    query_fitting,
    tie_credit,
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


class ShortContextModel:
    """Takes items with an even number; with `late` it answers them before it says that the others are too long."""

    def __init__(self, late: bool) -> None:
        self.late = late
        self.asked: list[str] = []

    def query(self, requests: Sequence[Request]) -> Answered:
        places = [i for i, request in enumerate(requests) if int(request.item.id) % 2]
        fitting = [i for i in range(len(requests)) if i not in places]
        for i in fitting if self.late or not places else []:
            self.asked.append(requests[i].item.id)
            yield i, {"score": float(requests[i].item.id)}
        if places:
            raise TooLongError("too much", places)

    def predictions(self, item: Item, answers: Sequence[Answer]) -> list[ScoredItem]:
        return [ScoredItem(item=item, presented=item, judgement=scored(item.best).judgement)]


@pytest.mark.parametrize("late", [False, True])
def test_too_long_items_are_skipped_and_settled_as_configured(late: bool) -> None:
    items, rm = [make_item(id=str(i), best=1) for i in range(5)], ShortContextModel(late)
    answers = dict(query_fitting(rm, [Request(item, (0,)) for item in items]))  # type: ignore[arg-type]
    too_long = {"too_long": "too much"}
    assert answers == {0: {"score": 0.0}, 1: too_long, 2: {"score": 2.0}, 3: too_long, 4: {"score": 4.0}}
    assert rm.asked == ["0", "2", "4"]
    answered = [(item, [answers[i]]) for i, item in enumerate(items)]
    every = list(combine(rm, answered))  # type: ignore[arg-type]
    left = apply_too_long(every, "exclude")
    assert [(one.item.id, one.credit) for one in left] == [("0", 1.0), ("2", 1.0), ("4", 1.0)]
    assert list(apply_too_long(every, "wrong")) == every
    assert [one.credit for one in every] == [1, 0, 1, 0, 1]
    assert [(one.too_long, one.parse_failure) for one in every[:2]] == [(False, False), (True, False)]
    with pytest.raises(TooLongError, match=r"2 of 5 items are too long, or refused: '1', '3'\. too much\. eval"):
        list(apply_too_long(every, "error"))
    with pytest.raises(TooLongError, match="1 of 1 items are too long, or refused"):
        list(apply_too_long(every[1:2], "wrong"))


def test_tie_of_k_has_credit_1_over_k_and_a_parse_failure_none() -> None:
    assert tie_credit([1.0, 3.0, 2.0], best=1) == 1
    assert tie_credit([1.0, 3.0, 2.0], best=2) == 0
    assert tie_credit([3.0, 3.0, 2.0, 3.0], best=0) == pytest.approx(1 / 3)
    assert tie_credit((2.0, 2.0), best=1) == 0.5
    assert [favourite(scores) for scores in ([1.0, 3.0, 2.0], [3.0, 3.0, 2.0])] == [1, None]
    tie = scored(None, scores=(2.0, 2.0, 1.0))
    assert (tie.credit, tie.correct, tie.parse_failure) == (0.5, False, False)
    failure = scored(None, "verdict_label", scores=(0.0, 9.0, 0.0))
    assert (failure.credit, failure.parse_failure) == (0.0, True)
    assert replace(failure, parse_failure_credit=1 / 3).credit == 1 / 3
    assert scored(1).credit == 1.0


def test_refused_item_counts_like_one_that_is_too_long_under_a_name_of_its_own() -> None:
    class Filtered(ShortContextModel):
        def query(self, requests: Sequence[Request]) -> Answered:
            if len(requests) > 1:
                raise TooLongError("too much, or refused", (0, 1), refused=(1,))
            yield 0, {"score": 1.0}

    items = [make_item(id=str(i), best=1) for i in range(3)]
    answers = dict(query_fitting(Filtered(False), [Request(item, (0,)) for item in items]))  # type: ignore[arg-type]
    assert [{*answers[i]} for i in range(3)] == [{"too_long"}, {"refused"}, {"score"}]
    every = list(combine(Filtered(False), [(item, [answers[i]]) for i, item in enumerate(items)]))  # type: ignore[arg-type]
    assert [one.judgement.issues for one in every] == [("too_long",), ("refused",), ()]
    assert [one.item.id for one in apply_too_long(every, "exclude")] == ["2"]
    assert [one.credit for one in apply_too_long(every, "wrong")] == [0, 0, 1]

"""Predictions: what they are worth, and their flat row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from items import make_item
from scipy.special import expit

from think_as_locals.reward_models.reward_model import ScoredItem, favourite, margin, tie_credit
from think_as_locals.types import Item, Judgement

ITEM = make_item(best=1)
TURNED = replace(ITEM, responses=("With a nod.", "With a bow.", "With a wai."), best=2)


def scored(verdict: int | None, *issues: str, presented: Item = ITEM, **changes: Any) -> ScoredItem:
    judgement = Judgement(verdict=verdict, rubric=None, analysis=None, issues=issues, text="the completion")
    return ScoredItem(item=ITEM, presented=presented, judgement=judgement, **changes)


def test_a_prediction_is_right_where_the_verdict_is_the_best_response_as_presented() -> None:
    assert [scored(verdict, presented=TURNED).correct for verdict in (0, 1, 2, None)] == [False, False, True, False]


def test_a_row_is_in_the_order_that_was_presented_and_of_a_parse_failure_has_no_verdict() -> None:
    row = scored(0, presented=TURNED).row()
    assert row["responses"] == ["With a nod.", "With a bow.", "With a wai."]
    assert (row["best"], row["verdict"], row["correct"]) == ("C", "A", False)
    described = tuple(row[name] for name in ("id", "culture", "domain", "language", "group"))
    assert described == ("th-1", "TH", "value", "en", "greeting")
    assert (row["issues"], row["completion"]) == ([], "the completion")
    failed = scored(None, "finished").row()
    assert (failed["verdict"], failed["correct"], failed["issues"]) == (None, False, ["finished"])


def test_a_tie_of_k_for_the_most_is_worth_one_in_k_and_has_no_favourite() -> None:
    assert tie_credit([1.0, 3.0, 2.0], best=1) == 1
    assert tie_credit([1.0, 3.0, 2.0], best=2) == 0
    assert tie_credit([3.0, 3.0, 2.0, 3.0], best=0) == pytest.approx(1 / 3)
    assert tie_credit((2.0, 2.0), best=1) == 0.5
    assert [favourite(scores) for scores in ([1.0, 3.0, 2.0], [3.0, 3.0, 2.0])] == [1, None]


def test_credit_of_scores_of_a_tie_and_of_a_parse_failure() -> None:
    tie = scored(None, scores=(2.0, 2.0, 1.0))
    assert (tie.credit, tie.correct, tie.parse_failure) == (0.5, False, False)
    failure = scored(None, "verdict_label", scores=(0.0, 9.0, 0.0))
    assert (failure.credit, failure.parse_failure) == (0.0, True)
    assert replace(failure, parse_failure_credit=1 / 3).credit == 1 / 3
    assert scored(1).credit == 1.0


def test_the_margin_is_the_log_odds_of_the_softmax_and_of_two_scores_their_difference() -> None:
    assert margin([1.0, 3.5]) == pytest.approx(2.5)
    assert margin([3.5, 1.0]) == pytest.approx(2.5)
    assert margin([2.0, 2.0]) == 0
    scores = [0.3, 1.2, -0.4, 0.9]
    softmax = np.exp(scores) / np.exp(scores).sum()
    assert expit(margin(scores)) == pytest.approx(softmax.max())
    assert expit(margin([5.0] * 4)) == pytest.approx(1 / 4)
    assert margin([1000.0, -1000.0]) == 2000  # without an overflow
    assert margin([1000.0, 999.0, 998.0]) == pytest.approx(margin([2.0, 1.0, 0.0]))

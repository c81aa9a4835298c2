"""Judging protocols: the requests of an item and how judgements are combined, with judges of known answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from items import make_item, row_of

from think_as_locals.judging import shuffle_responses
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.reward_models.reward_model import Request, ScoredItem
from think_as_locals.types import ConfigError, Convention, Item, Judgement, ProtocolKind

Judge = Callable[[Request], Judgement]
CONVENTIONS: tuple[Convention, ...] = ("strict", "rewardbench2")


def an_item(number: int = 0, size: int = 4, best: int = 0) -> Item:
    responses = tuple(f"answer {i} to {number}" for i in range(size))
    return make_item(id=str(number), prompt="?", responses=responses, best=best, language="th", group=f"g{number}")


def protocol(kind: ProtocolKind, orders: int = 1, convention: Convention = "strict") -> JudgingProtocol:
    return JudgingProtocol(kind=kind, orders=orders, convention=convention)


def verdict(place: int | None, text: str = "") -> Judgement:
    issues = () if place is not None else ("verdict_label",)
    return Judgement(verdict=place, rubric=None, analysis=None, issues=issues, completion=text)


def rating(value: float | None) -> Judgement:
    issues = () if value is not None else ("rating",)
    return Judgement(verdict=None, rubric=None, analysis=None, issues=issues, completion="x", rating=value)


def run_protocol(to: JudgingProtocol, item: Item, judge: Judge, seed: int = 3) -> list[ScoredItem]:
    requests = to.requests(item, seed)
    return to.predictions(requests, [judge(request) for request in requests], seed)


def credit(to: JudgingProtocol, item: Item, judge: Judge, seed: int = 3) -> Fraction:
    predictions = run_protocol(to, item, judge, seed)
    return sum((Fraction(p.credit).limit_denominator(1000) for p in predictions), Fraction()) / len(predictions)


def prefers_by_text(salt: str) -> Judge:
    """Prefers responses by their texts alone: deterministic, and without ties."""

    def worth(text: str) -> str:
        return hashlib.sha256(f"{salt}{text}".encode()).hexdigest()

    return lambda request: verdict(max(range(len(request.order)), key=lambda i: worth(request.responses[i])))


def prefers_by_order_and_text(salt: str) -> Judge:
    """Depends on the order as well: verdicts of the two orders of a pair may differ."""
    return lambda request: verdict(hashlib.sha256((salt + "|".join(request.responses)).encode()).digest()[0] % 2)


def always_chooses(place: int | None) -> Judge:
    return lambda request: verdict(place)


def prefers(*texts: str) -> Judge:
    """The first of these that is on offer."""
    return lambda request: verdict(next(request.responses.index(text) for text in texts if text in request.responses))


# --- requests ---


def test_listwise_orders_are_rotations_of_the_shuffled_order() -> None:
    item = an_item()
    requests = protocol("listwise", 4).requests(item, seed=3)
    assert requests[0].responses == shuffle_responses(item, 3).responses
    first = requests[0].order
    assert [request.order for request in requests] == [first[i:] + first[:i] for i in range(4)]
    assert protocol("listwise", 2).requests(item, seed=3) == requests[:2]
    assert len(protocol("listwise", 8).requests(item, seed=3)) == 4


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("pairwise", [[0, 2], [1, 2], [2, 3]]),  # the best against each other response
        ("round_robin", [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]),
        ("pointwise", [[0], [1], [2], [3]]),
    ],
)
def test_pairwise_round_robin_and_pointwise_requests(kind: ProtocolKind, asked: list[list[int]]) -> None:
    orders = [request.order for request in protocol(kind).requests(an_item(best=2), 3)]
    assert sorted(map(sorted, orders)) == asked
    if kind != "pointwise":
        both = [request.order for request in protocol(kind, 2).requests(an_item(best=2), 3)]
        assert both == [order for pair in orders for order in (pair, pair[::-1])]


@given(
    st.permutations(range(4)), st.integers(0, 3), st.sampled_from(["listwise", "pairwise", "round_robin", "pointwise"])
)
def test_requests_do_not_depend_on_stored_order(stored: list[int], best: int, kind: ProtocolKind) -> None:
    item = an_item(best=best)
    other = replace(item, responses=tuple(item.responses[i] for i in stored), best=stored.index(best))
    asked = [[request.responses for request in protocol(kind).requests(one, 3)] for one in (item, other)]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("kind", "orders"), [("listwise", 0), ("listwise", 9), ("pairwise", 3), ("pointwise", 2)])
def test_invalid_number_of_orders_is_rejected(kind: ProtocolKind, orders: int) -> None:
    with pytest.raises(ConfigError, match=f"got {orders} orders of a {kind} protocol, expected 1 to"):
        protocol(kind, orders)


# --- listwise ---


@given(st.integers(2, 8), st.integers(0, 7), st.integers(0, 9), st.sampled_from(CONVENTIONS))
def test_judge_that_always_chooses_a_scores_chance(n: int, best: int, seed: int, convention: Convention) -> None:
    item = an_item(size=n, best=best % n)
    assert credit(protocol("listwise", 8, convention), item, always_chooses(0), seed) == Fraction(1, n)
    assert credit(protocol("round_robin", 2, convention), item, always_chooses(0), seed) == Fraction(1, n)
    assert credit(protocol("pairwise", 2, convention), item, always_chooses(0), seed) == Fraction(1, n)


@pytest.mark.parametrize(
    ("kind", "size", "scores", "worth"),
    [
        ("listwise", 4, (None, None), (0.0, 0.25)),
        ("round_robin", 2, ((0.0, 0.0), (0.5, 0.5)), (0.0, 0.5)),  # won by neither, or by both by half
    ],
)
def test_missing_verdict_counts_as_wrong_or_as_a_guess(
    kind: ProtocolKind, size: int, scores: Any, worth: tuple[float, float]
) -> None:
    made = [
        run_protocol(protocol(kind, convention=convention), an_item(size=size), always_chooses(None))
        for convention in CONVENTIONS
    ]
    assert [(one.scores, one.credit, one.parse_failure) for (one,) in made] == [
        (expected, credit, True) for expected, credit in zip(scores, worth, strict=True)
    ]


# --- pairwise ---


def swapped(item: Item) -> Item:
    return replace(item, best=1 - item.best)


@given(st.text(max_size=4), st.integers(1, 2), st.booleans(), st.integers(0, 5))
def test_swapping_best_and_rejected_inverts_accuracy(salt: str, orders: int, slots: bool, seed: int) -> None:
    items = [an_item(i, size=2, best=i % 2) for i in range(15)]
    judge = prefers_by_order_and_text(salt) if slots else prefers_by_text(salt)
    for kind in ("pairwise", "round_robin"):
        rm = protocol(kind, orders)
        accuracy = sum(credit(rm, item, judge, seed) for item in items) / len(items)
        assert sum(credit(rm, swapped(item), judge, seed) for item in items) / len(items) == 1 - accuracy


def test_pairwise_best_response_must_beat_all_others() -> None:
    item = an_item(best=0)
    best, *others = item.responses
    (won,) = run_protocol(protocol("pairwise", 2), item, prefers(best))
    assert (won.credit, won.correct, won.judgement.issues) == (1.0, True, ())
    assert won.scores is not None
    assert sorted(won.scores) == [0, 0, 0, 0.5]
    (lost,) = run_protocol(protocol("pairwise", 2), item, prefers(others[1], best))
    assert (lost.credit, lost.correct, lost.parse_failure) == (0.0, False, False)
    assert lost.presented.responses[lost.judgement.verdict or 0] == others[1]


def test_pairwise_parse_failure_loses_or_halves_the_credit() -> None:
    item = an_item(best=0)

    def judge(request: Request, failing: tuple[tuple[int, int], ...]) -> Judgement:
        return verdict(None if request.order in failing else request.order.index(0))

    for orders, convention, credit, failing in (
        (1, "strict", 0.0, ((0, 2), (2, 0))),
        (1, "rewardbench2", 0.5, ((0, 2), (2, 0))),
        (2, "strict", 0.5, ((0, 2),)),  # won one order against that response, lost the other
    ):
        (prediction,) = run_protocol(protocol("pairwise", orders, convention), item, partial(judge, failing=failing))
        assert (prediction.credit, prediction.parse_failure) == (credit, True)
        assert prediction.judgement.issues == ("verdict_label",)


# --- round robin ---


@given(st.text(max_size=4), st.integers(2, 6), st.integers(1, 2))
def test_round_robin_reproduces_a_consistent_ranking(salt: str, n: int, orders: int) -> None:
    item = an_item(size=n)
    (prediction,) = run_protocol(protocol("round_robin", orders), item, prefers_by_text(salt))
    (listwise,) = run_protocol(protocol("listwise"), item, prefers_by_text(salt))
    assert prediction.scores is not None
    assert sorted(prediction.scores) == pytest.approx([i / (n - 1) for i in range(n)])
    assert prediction.judgement.verdict == listwise.judgement.verdict
    assert prediction.credit == listwise.credit


@pytest.mark.parametrize("orders", [1, 2])
@pytest.mark.parametrize(("convention", "credit"), [("strict", 0.0), ("rewardbench2", 1.0)])
def test_round_robin_with_one_parsed_comparison_is_a_parse_failure(
    orders: int, convention: Convention, credit: float
) -> None:
    def judge(request: Request) -> Judgement:
        return prefers("answer 0 to 0")(request) if set(request.order) == {0, 1} else verdict(None)

    (prediction,) = run_protocol(protocol("round_robin", orders, convention), an_item(), judge)
    assert (prediction.credit, prediction.parse_failure) == (credit, True)
    assert prediction.judgement.issues == ("verdict_label",)


# --- pointwise ---


def rates(*ratings: float | None) -> Judge:
    return lambda request: rating(ratings[request.order[0]])


@pytest.mark.parametrize(
    ("ratings", "strict", "theirs"),
    [
        ((9, 3, 3, 1), 1, 1),
        ((9, 9, 3, 1), 1 / 2, 1 / 2),
        ((3, 9, 9, 1), 0, 0),
        ((9, None, 3, 1), 0, 1),
        ((None, 2, 2, 1), 0, 0),
        ((7, 7, None, 1), 0, 1 / 2),
        ((None, None, None, None), 0, 1 / 4),
    ],
)
def test_pointwise_credit_of_ratings(ratings: tuple[float | None, ...], strict: float, theirs: float) -> None:
    parsed, item = None not in ratings, an_item()
    (ours,) = run_protocol(protocol("pointwise"), item, rates(*ratings))
    assert (ours.credit, ours.parse_failure, ours.scores is None) == (strict, not parsed, not parsed)
    (other,) = run_protocol(protocol("pointwise", convention="rewardbench2"), item, rates(*ratings))
    assert (other.credit, other.parse_failure) == (theirs, not parsed)
    rated = dict(zip(item.responses, ratings, strict=True))
    assert other.scores == tuple(-1 if rated[text] is None else rated[text] for text in other.presented.responses)


# --- what is kept ---


@given(st.data(), st.sampled_from(["listwise", "pairwise", "round_robin", "pointwise"]), st.sampled_from(CONVENTIONS))
def test_any_judgements_give_consistent_predictions(data: Any, kind: ProtocolKind, convention: Convention) -> None:
    item = an_item(size=data.draw(st.integers(2, 5)), best=1)
    to = protocol(kind, data.draw(st.integers(1, 1 if kind == "pointwise" else 2)), convention)

    def judge(request: Request) -> Judgement:
        if kind == "pointwise":
            return rating(data.draw(st.none() | st.integers(1, 10).map(float)))
        return verdict(data.draw(st.none() | st.integers(0, len(request.order) - 1)))

    predictions = run_protocol(to, item, judge)
    assert len(predictions) == (to.orders if kind == "listwise" else 1)
    for prediction in predictions:
        assert 0 <= prediction.credit <= 1
        assert prediction.judgement.verdict is None or not prediction.judgement.issues
        assert not prediction.correct or prediction.credit == 1
        assert kind == "listwise" or prediction.presented == shuffle_responses(item, 3)
        json.dumps(row_of(prediction), allow_nan=False)


@pytest.mark.parametrize("kind", ["listwise", "pairwise", "round_robin"])
def test_broken_rules_of_quality_leave_verdict_and_credit(kind: ProtocolKind) -> None:
    item = an_item(best=2)

    def sloppy(request: Request) -> Judgement:
        return replace(verdict(request.order.index(2) if 2 in request.order else 0), issues=("criterion_weights",))

    (scored,) = run_protocol(protocol(kind), item, sloppy)
    assert (scored.credit, scored.parse_failure, scored.judgement.issues) == (1.0, False, ("criterion_weights",))

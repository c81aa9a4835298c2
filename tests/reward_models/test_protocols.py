"""How an item is put to a judge, and how judgements are combined, by hand and by judges whose answer is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from items import make_item

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
    return Judgement(verdict=place, rubric=None, analysis=None, issues=issues, text=text)


def rating(value: float | None) -> Judgement:
    issues = () if value is not None else ("rating",)
    return Judgement(verdict=None, rubric=None, analysis=None, issues=issues, text="x", rating=value)


def put(to: JudgingProtocol, item: Item, judge: Judge, seed: int = 3) -> list[ScoredItem]:
    requests = to.requests(item, seed)
    return to.predictions(requests, [judge(request) for request in requests], seed)


def credit(to: JudgingProtocol, item: Item, judge: Judge, seed: int = 3) -> Fraction:
    predictions = put(to, item, judge, seed)
    return sum((Fraction(p.credit).limit_denominator(1000) for p in predictions), Fraction()) / len(predictions)


def taste(salt: str) -> Judge:
    """Prefers responses by their texts alone: deterministic, and without ties."""

    def worth(text: str) -> str:
        return hashlib.sha256(f"{salt}{text}".encode()).hexdigest()

    return lambda request: verdict(max(range(len(request.order)), key=lambda i: worth(request.responses[i])))


def slot_and_taste(salt: str) -> Judge:
    """Depends on the order as well: verdicts of the two orders of a pair may differ."""
    return lambda request: verdict(hashlib.sha256((salt + "|".join(request.responses)).encode()).digest()[0] % 2)


def says(place: int | None) -> Judge:
    return lambda request: verdict(place)


def prefers(*texts: str) -> Judge:
    """The first of these that is on offer."""
    return lambda request: verdict(next(request.responses.index(text) for text in texts if text in request.responses))


# --- requests ---


def test_listwise_begins_with_the_order_of_shuffle_responses_and_rotates_it() -> None:
    item = an_item()
    requests = protocol("listwise", 4).requests(item, seed=3)
    assert requests[0].responses == shuffle_responses(item, 3).responses
    first = requests[0].order
    assert [request.order for request in requests] == [first[i:] + first[:i] for i in range(4)]
    assert protocol("listwise", 2).requests(item, seed=3) == requests[:2]
    assert len(protocol("listwise", 8).requests(item, seed=3)) == 4


def test_every_response_stands_once_in_every_slot() -> None:
    requests = protocol("listwise", 8).requests(an_item(size=5), seed=0)
    assert all(sorted(slot) == list(range(5)) for slot in zip(*(request.order for request in requests), strict=True))


def test_pairwise_sets_the_best_against_each_other_response() -> None:
    item = an_item(best=2)
    pairs = [request.order for request in protocol("pairwise").requests(item, 3)]
    assert sorted(map(sorted, pairs)) == [[0, 2], [1, 2], [2, 3]]
    assert [request.order for request in protocol("pairwise", 2).requests(item, 3)] == [
        order for pair in pairs for order in (pair, pair[::-1])
    ]


def test_round_robin_has_every_pair() -> None:
    pairs = [request.order for request in protocol("round_robin").requests(an_item(), 3)]
    assert sorted(map(sorted, pairs)) == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert len(protocol("round_robin", 2).requests(an_item(), 3)) == 12


def test_pointwise_shows_each_response_alone() -> None:
    assert sorted(request.order for request in protocol("pointwise").requests(an_item(), 3)) == [(0,), (1,), (2,), (3,)]


def test_a_pair_is_shown_in_the_order_of_shuffle_responses() -> None:
    for number in range(20):
        item = an_item(number, size=2)
        (request,) = protocol("pairwise").requests(item, 3)
        assert request.responses == shuffle_responses(item, 3).responses


@given(
    st.permutations(range(4)), st.integers(0, 3), st.sampled_from(["listwise", "pairwise", "round_robin", "pointwise"])
)
def test_how_an_item_is_stored_changes_nothing(stored: list[int], best: int, kind: ProtocolKind) -> None:
    item = an_item(best=best)
    other = replace(item, responses=tuple(item.responses[i] for i in stored), best=stored.index(best))
    asked = [[request.responses for request in protocol(kind).requests(one, 3)] for one in (item, other)]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("kind", "orders"), [("listwise", 0), ("listwise", 9), ("pairwise", 3), ("pointwise", 2)])
def test_orders_that_a_kind_does_not_have(kind: ProtocolKind, orders: int) -> None:
    with pytest.raises(ConfigError, match=f"got {orders} orders of a {kind} protocol, expected 1 to"):
        protocol(kind, orders)


def test_judgements_must_be_those_of_the_requests() -> None:
    for kind in ("listwise", "pairwise"):
        to = protocol(kind, 2)
        with pytest.raises(ValueError, match="is shorter"):
            to.predictions(to.requests(an_item(), 0), [verdict(0)], 0)


# --- listwise ---


@given(st.integers(2, 8), st.integers(0, 7), st.integers(0, 9), st.sampled_from(CONVENTIONS))
def test_a_judge_that_always_says_a_scores_exactly_one_in_n(
    n: int, best: int, seed: int, convention: Convention
) -> None:
    item = an_item(size=n, best=best % n)
    assert credit(protocol("listwise", 8, convention), item, says(0), seed) == Fraction(1, n)
    assert credit(protocol("round_robin", 2, convention), item, says(0), seed) == Fraction(1, n)
    assert credit(protocol("pairwise", 2, convention), item, says(0), seed) == Fraction(1, n)


def test_listwise_has_a_prediction_for_each_order() -> None:
    item = an_item(best=1)
    predictions = put(protocol("listwise", 4), item, prefers(item.responses[1]))
    assert [p.correct for p in predictions] == [True] * 4
    assert sorted(p.presented.best for p in predictions) == [0, 1, 2, 3]
    assert all(p.presented.responses[p.presented.best] == item.responses[1] and p.scores is None for p in predictions)


def test_an_unparsable_listwise_verdict_is_wrong_or_a_guess() -> None:
    (strict,) = put(protocol("listwise"), an_item(), says(None))
    (theirs,) = put(protocol("listwise", convention="rewardbench2"), an_item(), says(None))
    assert (strict.parse_failure, strict.credit) == (True, 0.0)
    assert (theirs.parse_failure, theirs.credit) == (True, 0.25)


# --- pairwise ---


def swapped(item: Item) -> Item:
    return replace(item, best=1 - item.best)


@given(st.text(max_size=4), st.integers(1, 2), st.booleans(), st.integers(0, 5))
@settings(deadline=None)
def test_swapping_chosen_and_rejected_turns_a_into_one_minus_a(salt: str, orders: int, slots: bool, seed: int) -> None:
    items = [an_item(i, size=2, best=i % 2) for i in range(15)]
    judge = slot_and_taste(salt) if slots else taste(salt)
    for kind in ("pairwise", "round_robin"):
        rm = protocol(kind, orders)
        accuracy = sum(credit(rm, item, judge, seed) for item in items) / len(items)
        assert sum(credit(rm, swapped(item), judge, seed) for item in items) / len(items) == 1 - accuracy


def test_the_best_has_to_beat_all_others() -> None:
    item = an_item(best=0)
    best, *others = item.responses
    (won,) = put(protocol("pairwise", 2), item, prefers(best))
    assert (won.credit, won.correct, won.judgement.issues) == (1.0, True, ())
    assert won.scores is not None
    assert sorted(won.scores) == [0, 0, 0, 0.5]
    (lost,) = put(protocol("pairwise", 2), item, prefers(others[1], best))
    assert (lost.credit, lost.correct, lost.parse_failure) == (0.0, False, False)
    assert lost.presented.responses[lost.judgement.verdict or 0] == others[1]


def test_orders_that_disagree_are_a_tie() -> None:
    item = an_item(size=2)
    (prediction,) = put(protocol("pairwise", 2), item, says(0))
    assert (prediction.scores, prediction.credit, prediction.parse_failure) == ((0.5, 0.5), 0.5, False)


def test_a_comparison_that_cannot_be_read_is_lost_or_half_lost() -> None:
    item = an_item(best=0)

    def judge(request: Request) -> Judgement:
        return verdict(None) if 2 in request.order else verdict(request.order.index(0))

    (strict,) = put(protocol("pairwise"), item, judge)
    assert (strict.credit, strict.parse_failure, strict.judgement.issues) == (0.0, True, ("verdict_label",))
    (theirs,) = put(protocol("pairwise", convention="rewardbench2"), item, judge)
    assert (theirs.credit, theirs.parse_failure) == (0.5, True)
    (half,) = put(
        protocol("pairwise", 2), item, lambda r: verdict(None) if r.order == (0, 2) else prefers("answer 0 to 0")(r)
    )
    assert (half.credit, half.parse_failure) == (0.5, True)  # won one order against that response, lost the other


# --- round robin ---


@given(st.text(max_size=4), st.integers(2, 6), st.integers(1, 2))
@settings(deadline=None)
def test_round_robin_of_a_judge_with_a_ranking_is_that_ranking(salt: str, n: int, orders: int) -> None:
    item = an_item(size=n)
    (prediction,) = put(protocol("round_robin", orders), item, taste(salt))
    (listwise,) = put(protocol("listwise"), item, taste(salt))
    assert prediction.scores is not None
    assert sorted(prediction.scores) == pytest.approx([i / (n - 1) for i in range(n)])
    assert prediction.judgement.verdict == listwise.judgement.verdict
    assert prediction.credit == listwise.credit


def test_an_unparsable_comparison_of_a_round_robin_is_won_by_neither_or_by_both_by_half() -> None:
    item = an_item(size=2)
    (strict,) = put(protocol("round_robin"), item, says(None))
    assert (strict.scores, strict.credit, strict.parse_failure) == ((0.0, 0.0), 0.0, True)
    (theirs,) = put(protocol("round_robin", convention="rewardbench2"), item, says(None))
    assert (theirs.scores, theirs.credit, theirs.parse_failure) == ((0.5, 0.5), 0.5, True)


@pytest.mark.parametrize("orders", [1, 2])
def test_a_round_robin_of_which_one_comparison_alone_is_readable_is_a_parse_failure(orders: int) -> None:
    item = an_item(best=0)

    def judge(request: Request) -> Judgement:
        return prefers(item.responses[0])(request) if set(request.order) == {0, 1} else verdict(None)

    (strict,) = put(protocol("round_robin", orders), item, judge)
    assert (strict.credit, strict.parse_failure, strict.judgement.issues) == (0.0, True, ("verdict_label",))
    (theirs,) = put(protocol("round_robin", orders, "rewardbench2"), item, judge)
    assert (theirs.credit, theirs.parse_failure) == (1.0, True)


# --- pointwise ---


def rates(**ratings: float | None) -> Judge:
    return lambda request: rating(ratings[f"r{request.order[0]}"])


@pytest.mark.parametrize(
    ("ratings", "strict", "theirs"),
    [
        ({"r0": 9, "r1": 3, "r2": 3, "r3": 1}, 1, 1),
        ({"r0": 9, "r1": 9, "r2": 3, "r3": 1}, 1 / 2, 1 / 2),
        ({"r0": 3, "r1": 9, "r2": 9, "r3": 1}, 0, 0),
        ({"r0": 9, "r1": None, "r2": 3, "r3": 1}, 0, 1),
        ({"r0": None, "r1": 2, "r2": 2, "r3": 1}, 0, 0),
        ({"r0": 7, "r1": 7, "r2": None, "r3": 1}, 0, 1 / 2),
        ({"r0": None, "r1": None, "r2": None, "r3": None}, 0, 1 / 4),
    ],
)
def test_ratings(ratings: dict[str, float | None], strict: float, theirs: float) -> None:
    readable = None not in ratings.values()
    (ours,) = put(protocol("pointwise"), an_item(), rates(**ratings))
    assert (ours.credit, ours.parse_failure) == (strict, not readable)
    assert (ours.scores is None) == (not readable)
    (other,) = put(protocol("pointwise", convention="rewardbench2"), an_item(), rates(**ratings))
    assert (other.credit, other.parse_failure) == (theirs, not readable)
    assert other.scores == tuple(
        -1 if (value := ratings[f"r{an_item().responses.index(text)}"]) is None else value
        for text in other.presented.responses
    )


# --- what is kept ---


def test_the_text_says_what_was_asked_and_read() -> None:
    item = an_item(size=2)
    (prediction,) = put(
        protocol("pairwise", 2), item, lambda r: verdict(0, "kinder") if r.order == (0, 1) else verdict(None, "hm")
    )
    blocks = prediction.judgement.text.split("\n\n")
    a, b = (prediction.presented.responses.index(text) for text in item.responses)
    assert sorted(blocks) == sorted(
        [
            f"[{'AB'[a]} or {'AB'[b]}: chose {'AB'[a]}]\nkinder",
            f"[{'AB'[b]} or {'AB'[a]}: parse failure: verdict_label]\nhm",
        ]
    )
    (rated,) = put(protocol("pointwise"), item, rates(r0=8, r1=2))
    assert "rated 8]\nx" in rated.judgement.text


@given(st.data(), st.sampled_from(["listwise", "pairwise", "round_robin", "pointwise"]), st.sampled_from(CONVENTIONS))
@settings(deadline=None)
def test_any_judgements_come_to_predictions_that_hold_together(
    data: Any, kind: ProtocolKind, convention: Convention
) -> None:
    item = an_item(size=data.draw(st.integers(2, 5)), best=1)
    to = protocol(kind, data.draw(st.integers(1, 1 if kind == "pointwise" else 2)), convention)

    def judge(request: Request) -> Judgement:
        if kind == "pointwise":
            return rating(data.draw(st.none() | st.integers(1, 10).map(float)))
        return verdict(data.draw(st.none() | st.integers(0, len(request.order) - 1)))

    predictions = put(to, item, judge)
    assert len(predictions) == (to.orders if kind == "listwise" else 1)
    for prediction in predictions:
        assert 0 <= prediction.credit <= 1
        assert prediction.judgement.verdict is None or not prediction.judgement.issues
        assert not prediction.correct or prediction.credit == 1
        assert kind == "listwise" or prediction.presented == shuffle_responses(item, 3)
        json.dumps(prediction.row(), allow_nan=False)

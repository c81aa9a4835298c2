"""Verifiable rewards: what each component pays, and that nothing pays for abstaining."""

from __future__ import annotations

from itertools import permutations

import pytest

from think_as_locals.judging import COMPONENTS, RULES, parse, permute, present, score, write
from think_as_locals.judging.rewards import UnknownRewardError
from think_as_locals.types import Criterion, Item, Rubric

RUBRIC = Rubric(
    (Criterion(50, "Custom", "Done there."), Criterion(30, "Place", "Known."), Criterion(20, "Words", "Fit."))
)
ITEM = Item(
    id="1",
    prompt="Breakfast?",
    responses=("Rice.", "Toast.", "Beans."),
    best=1,
    culture="US",
    language="en",
    domain="commonsense",
    group="breakfast",
    source="mine",
)


def completion(verdict: int) -> str:
    return write(RUBRIC, "A: no. B: yes. C: no.", verdict)


@pytest.mark.parametrize("seed", range(6))
def test_the_verdict_is_scored_in_the_order_that_the_judge_was_shown(seed: int) -> None:
    best = present(ITEM, seed).best
    rewards = [score(parse(completion(v), 3), ITEM, seed=seed).parts["correctness"] for v in range(3)]
    assert rewards == [1.0 if v == best else -1.0 for v in range(3)]


def test_the_order_of_storage_does_not_change_a_reward() -> None:
    for order in permutations(range(3)):
        for verdict in range(3):
            judgement = parse(completion(verdict), 3)
            assert score(judgement, permute(ITEM, order)).parts == score(judgement, ITEM).parts


@pytest.mark.parametrize("text", ["", "I cannot judge this.", "B", "<verdict>B</verdict>", completion(0)[:-1]])
def test_no_verdict_is_as_bad_as_a_wrong_one(text: str) -> None:
    assert score(parse(text, 3), ITEM).parts["correctness"] == -1.0


def test_a_right_verdict_of_a_completion_that_was_cut_off_is_not_paid() -> None:
    right = completion(present(ITEM).best)
    assert score(parse(right, 3, "stop"), ITEM).parts["correctness"] == 1.0
    assert score(parse(right, 3, "length"), ITEM).parts["correctness"] == -1.0


def test_structure_is_the_share_of_rules_that_hold() -> None:
    kept = [len(RULES) - len(parse(text, 3).issues) for text in (completion(0), completion(0) + " So B.", "")]
    paid = [score(parse(text, 3), ITEM).parts["structure"] for text in (completion(0), completion(0) + " So B.", "")]
    assert paid == pytest.approx([k / len(RULES) for k in kept])
    assert paid[0] == 1.0
    assert paid[1] == pytest.approx(1 - 1 / len(RULES))
    assert 0 <= paid[2] < 0.2


@pytest.mark.parametrize("reason", ["length", None])
def test_structure_is_full_only_where_there_is_no_issue(reason: str | None) -> None:
    assert score(parse(completion(0), 3, reason), ITEM).parts["structure"] < 1.0


def test_with_the_default_weights_abstaining_pays_less_than_guessing() -> None:
    weights = {"correctness": 1.0, "structure": 0.2}
    guess = [score(parse(completion(v), 3), ITEM).total(weights) for v in range(3)]
    for text in ("", "nonsense", completion(0).replace("<verdict>A</verdict>", ""), completion(0).replace(">A<", "><")):
        assert score(parse(text, 3), ITEM).total(weights) < min(guess) < sum(guess) / 3


def test_only_the_components_asked_for_are_computed() -> None:
    assert set(score(parse("", 3), ITEM).parts) == set(COMPONENTS)
    assert set(score(parse("", 3), ITEM, components=["structure"]).parts) == {"structure"}


def test_an_unknown_component_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UnknownRewardError, match=r"'corectness'.*correctness, structure"):
        score(parse("", 3), ITEM, components=["corectness"])


def test_components_cannot_be_added_from_outside() -> None:
    with pytest.raises(TypeError):
        COMPONENTS["free"] = COMPONENTS["structure"]  # type: ignore[index]

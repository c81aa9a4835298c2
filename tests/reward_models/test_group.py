"""Group rewards: shares of duels, ratings and scores, for any completions in any order."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from evaluation.test_journal import Hashing
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_models.scripted import Picks, Scripted, first, judged, longest, shown_in

from think_as_locals.reward_models.group import GroupReward, policy_rows
from think_as_locals.reward_models.judge import Judge, JudgeSettings
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.types import DataError, ProtocolKind


def picking(picks: Picks) -> Scripted:
    return Scripted(partial(judged, picks=picks))


def judge(engine: Scripted, kind: ProtocolKind = "round_robin", orders: int = 2) -> GroupReward:
    asked = JudgeSettings(prompt="rewardbench2_ratings" if kind == "pointwise" else "listwise")
    protocol = JudgingProtocol(kind=kind, orders=orders, convention="strict")
    return GroupReward(Judge(engine=engine, settings=asked, protocol=protocol))


def scores(reward: GroupReward, *responses: str) -> list[float | None]:
    return reward.score(["Breakfast?"] * len(responses), responses)


def test_rewards_are_shares_of_duels_asked_in_one_call() -> None:
    engine = Scripted()
    assert scores(judge(engine), "a", "abc", "ab") == [0.0, 1.0, 0.5]
    assert [len(call) for call in engine.calls] == [6]
    assert all(len(shown_in(messages)) == 2 for messages in engine.calls[0])
    assert scores(judge(picking(first)), "a", "ab", "abc") == [0.5, 0.5, 0.5]
    responses = ["x" * (1 + i) for i in range(12)]
    engine = Scripted()
    assert scores(judge(engine), *responses) == pytest.approx([i / 11 for i in range(12)])
    assert len(engine.calls[0]) == 132
    assert scores(judge(Scripted(), "pointwise", 1), *responses) == [float(min(10, 1 + i)) for i in range(12)]


def test_parse_failure_counts_for_neither_response() -> None:
    def unless_long(presented: list[str]) -> int | None:
        return None if "abc" in presented else longest(presented)

    assert scores(judge(picking(unless_long)), "a", "ab", "abc") == [0.0, 1.0, None]

    def one_order(presented: list[str]) -> int | None:
        return None if len(presented[0]) < len(presented[1]) else 0

    assert scores(judge(picking(one_order)), "a", "ab", "abc") == [0.0, 0.5, 1.0]


def test_order_dependent_comparison_is_a_tie_with_disagreement() -> None:
    first = judge(picking(lambda presented: 0)).rewards(policy_rows(["p"] * 3, ["a", "ab", "abc"]))
    assert first == [(0.5, 1.0)] * 3

    def by_length_unless_close(presented: list[str]) -> int | None:
        return 0 if abs(len(presented[0]) - len(presented[1])) < 2 else longest(presented)

    mixed = judge(picking(by_length_unless_close)).rewards(policy_rows(["p"] * 3, ["a", "ab", "abc"]))
    assert mixed == [(0.25, 0.5), (0.5, 1.0), (0.75, 0.5)]
    assert judge(Scripted()).rewards(policy_rows(["p"] * 2, ["a", "ab"])) == [(0.0, 0.0), (1.0, 0.0)]
    rated = judge(Scripted(), "pointwise", 1).rewards(policy_rows(["p"] * 2, ["a", "ab"]))
    assert [reward.order_disagreement for reward in rated] == [0.0, 0.0]


def test_groups_are_keyed_by_prompt_culture_and_language() -> None:
    engine = Scripted()
    prompts = ["p", "q", "p", "p", "q", "p"]
    responses = ["a", "a", "ab", "abc", "ab", "abcd"]
    cultures = ["TH", "TH", "TH", "JP", "TH", "TH"]
    languages = ["en", None, "en", "en", None, "th"]
    assert judge(engine).score(prompts, responses, cultures, languages) == [0.0, 0.0, 1.0, 0.5, 1.0, 0.5]
    assert [len(call) for call in engine.calls] == [4]
    assert all("Thailand" in messages[-1]["content"] + messages[0]["content"] for messages in engine.calls[0])


def test_duplicates_count_once_and_a_single_response_is_neutral() -> None:
    engine = Scripted()
    assert scores(judge(engine), "ab", "a", "ab", "ab") == [1.0, 0.0, 1.0, 1.0]
    assert len(engine.calls[0]) == 2
    alone = Scripted()
    assert scores(judge(alone), "ab", "ab") == [0.5, 0.5]
    assert scores(judge(alone)) == []
    assert alone.calls == []
    assert scores(judge(alone, "pointwise", 1), "ab") == [2.0]
    assert len(alone.calls[0]) == 1


def test_blank_response_gets_the_lowest_reward() -> None:
    nothing = ["", " \n", "\u2060\u200b", "\ud800"]
    engine = Scripted()
    assert scores(judge(engine), *nothing, "a", "ab") == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0]
    assert len(engine.calls[0]) == 2
    assert scores(judge(engine), *nothing) == [0.0, 0.0, 0.0, 0.0]
    assert scores(judge(engine), "", "a") == [0.0, 1.0]
    assert len(engine.calls) == 1
    assert scores(judge(Scripted(), "pointwise", 1), "", "abc") == [1.0, 3.0]
    assert scores(judge(picking(lambda presented: None), "pointwise", 1), "", "abc") == [1.0, None]
    assert scores(judge(Scripted()), "a\ud800", "a") == [1.0, 0.0]


@pytest.mark.parametrize(
    ("responses", "references", "rewards"),
    [
        (["a", "abc"], ["ab", "ab"], [0.0, 1.0]),
        (["ab"], ["a"], [1.0]),
        (["ab"], ["ab"], [0.5]),
        (["ab", "a"], [None, " "], [1.0, 0.0]),
        ([" ", "ab"], ["abc", "abc"], [0.0, 0.5]),
    ],
)
def test_reference_is_one_more_opponent_in_comparisons(
    responses: list[str], references: list[str | None], rewards: list[float]
) -> None:
    assert judge(Scripted()).score(["p"] * len(responses), responses, references=references) == rewards


def test_rating_judge_ignores_references() -> None:
    engine = Scripted()
    assert judge(engine, "pointwise", 1).score(["p"] * 2, ["ab", "abc"], references=["abcd"] * 2) == [2.0, 3.0]
    assert len(engine.calls[0]) == 2


def test_score_of_a_response_does_not_depend_on_its_batch() -> None:
    rm = Hashing(chunk_size=None)
    responses = [*map(str, range(17)), "", "5", " ", "\u2060"]
    found = scores(GroupReward(rm), *responses)
    alone = {text: scores(GroupReward(Hashing(chunk_size=None)), text)[0] for text in responses}
    assert found == [alone[text] for text in responses]
    assert found[17] == found[19] == found[20]
    assert len(set(found)) == 18
    assert len(rm.asked) == 18


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((["p", "q"], ["a"]), "2 prompts, 1 responses"),
        ((["p", " "], ["a", "b"]), "row 1: prompt must be a non-blank string, got ' '"),
        ((["p"], ["a"], [False]), "row 0: culture"),
        ((["p"], [["a"]]), "row 0: response must be a string"),
        ((["p"], ["a"], None, None, [3]), "row 0: reference must be a string, got 3"),
    ],
)
def test_invalid_row_error_names_row_and_column(columns: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        judge(Scripted()).score(*columns)


rows = st.lists(
    st.tuples(st.sampled_from(["p", "q"]), st.text(max_size=3), st.sampled_from(["TH", None])), min_size=1, max_size=9
)


@settings(max_examples=20)
@given(rows=rows, order=st.randoms(use_true_random=False), picks=st.sampled_from([longest, first]))
def test_rewards_follow_their_rows_in_any_order(rows: list[tuple[Any, ...]], order: Any, picks: Picks) -> None:
    reward = judge(picking(picks))
    rewards = reward.score(*map(list, zip(*rows, strict=True)))
    places = list(range(len(rows)))
    order.shuffle(places)
    assert reward.score(*map(list, zip(*(rows[i] for i in places), strict=True))) == [rewards[i] for i in places]


@given(
    texts=st.lists(st.text("abc ", max_size=3), min_size=2, max_size=9, unique_by=str.strip),
    picks=st.sampled_from([longest, first, lambda presented: presented.index(min(presented))]),
)
def test_rewards_of_a_group_sum_to_half_its_size(texts: list[str], picks: Picks) -> None:
    found = scores(judge(picking(picks)), *texts)
    assert sum(share for share in found if share is not None) == pytest.approx(len(texts) / 2)
    assert all(share is not None and 0 <= share <= 1 for share in found)

"""Pairs: chosen and rejected, a preference between two responses, ratings of several."""

from __future__ import annotations

from typing import Any

import pytest
from data.tables import a_row, defects

from think_as_locals.data.rows import Outcome, Row
from think_as_locals.data.sources import best_of_n, ratings

PAIR: dict[str, Any] = {
    "id": 31,
    "prompt": "How do I boil an egg?",
    "chosen": "In boiling water.",
    "chosen_model": "m0",
    "rejected": "I do not know.",
    "rejected_model": "m1",
    "subset": "alpacaeval-easy",
}
HELPSTEER: dict[str, Any] = {
    "domain": "multilingual",
    "language": "korean",
    "context": [{"role": "user", "content": "한국의 아침 식사는?"}],
    "response1": "밥과 국입니다.",
    "response2": "모르겠습니다.",
    "overall_preference": -2,
    "individual_preference": [],
}


def test_a_chosen_and_a_rejected_response_are_a_pair() -> None:
    outcome = best_of_n.pair_outcome(a_row(PAIR))
    (item,) = outcome.items
    assert not outcome.faults
    assert (item.responses, item.best) == (("In boiling water.", "I do not know."), 0)
    assert (item.id, item.group) == ("pairs/en/alpacaeval-easy/31", "alpacaeval-easy/31")
    assert (item.language, item.domain) == ("en", "alpacaeval-easy")


def test_a_translated_pair_is_in_the_question_group_of_its_original() -> None:
    (original,), (translated,) = (
        best_of_n.pair_outcome(a_row(PAIR | changes)).items
        for changes in ({}, {"language": "deu_Latn", "prompt": "Wie?"})
    )
    assert translated.group == original.group
    assert (translated.language, translated.id) == ("de", "pairs/de/alpacaeval-easy/31")


def test_a_conversation_with_half_of_a_surrogate_pair_is_named() -> None:
    context = [{"role": "user", "content": "Breakfast?"}, {"role": "assistant", "content": "half \ud83d"}]
    assert defects(best_of_n.helpsteer3_outcome(a_row(HELPSTEER | {"context": context}))) == ["broken_text"]


def test_rows_of_two_files_are_pairs_with_ids_of_their_own() -> None:
    """A question whose responses stand in line 1 of one file, and in lines 1 and 2 of each of two."""
    places = [("a.jsonl", 1, 9), ("a.jsonl", 2, 2), ("b.jsonl", 1, 3), ("b.jsonl", 2, 4)]
    values = [
        {"question": "早饭吃什么？", "response": f"{file} {number}", "rating": rating, "culture_type": "Food"}
        | {"associated_culture": "Chinese"}
        for file, number, rating in places
    ]
    rows = [Row(file, number, value, "") for (file, number, _), value in zip(places, values, strict=True)]
    ids = [item.id for outcome in ratings.care_outcomes(rows, None) for item in outcome.items]
    assert len(ids) == len(set(ids)) == 6


def test_pairs_of_ones_own_need_no_more_than_three_fields() -> None:
    outcome = best_of_n.pair_outcome(a_row({name: PAIR[name] for name in ("prompt", "chosen", "rejected")}))
    assert not outcome.faults
    assert outcome.items[0].id == "pairs/rows.jsonl-7"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"chosen": PAIR["rejected"]}, ["identical_responses"]),
        ({"rejected": ""}, ["empty_response"]),
        ({"prompt": ["a", "b"]}, ["wrong_type"]),
        ({"language": "xx_Xxxx"}, ["unknown_language"]),
        ({"chosen": None, "prompt": None}, ["missing_field", "missing_field"]),
    ],
)
def test_faults_of_pairs_are_named(changes: dict[str, Any], expected: list[str]) -> None:
    outcome = best_of_n.pair_outcome(a_row(PAIR | changes))
    assert defects(outcome) == expected
    assert outcome.items == ()


@pytest.mark.parametrize(
    ("preference", "best"), [(-3, "밥과 국입니다."), (-1, "밥과 국입니다."), (1, "모르겠습니다."), (3, "모르겠습니다.")]
)
def test_a_preference_says_which_response_is_better(preference: int, best: str) -> None:
    (item,) = best_of_n.helpsteer3_outcome(a_row(HELPSTEER | {"overall_preference": preference})).items
    assert item.responses[item.best] == best
    assert (item.prompt, item.language, item.domain) == ("한국의 아침 식사는?", "ko", "multilingual")


def test_two_responses_about_the_same_are_no_item_and_no_fault_of_the_row() -> None:
    outcome = best_of_n.helpsteer3_outcome(a_row(HELPSTEER | {"overall_preference": 0}))
    assert (defects(outcome), outcome.items, outcome.imported) == (["tie"], (), False)
    assert outcome.faults[0].defect.severity == "skipped"


def test_a_conversation_is_one_prompt_with_the_role_before_each_turn() -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "?"},
    ]
    (item,) = best_of_n.helpsteer3_outcome(a_row(HELPSTEER | {"context": turns})).items
    assert item.prompt == "user: Hi\n\nassistant: Hello\n\nuser: ?"


def test_code_is_asked_about_in_english() -> None:
    (item,) = best_of_n.helpsteer3_outcome(a_row(HELPSTEER | {"domain": "code", "language": "python"})).items
    assert item.language == "en"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"overall_preference": 4}, ["bad_rating"]),
        ({"overall_preference": 0.5}, ["bad_rating"]),
        ({"overall_preference": "much"}, ["wrong_type"]),
        ({"overall_preference": True}, ["wrong_type"]),
        ({"overall_preference": None}, ["missing_field"]),
        ({"context": []}, ["empty_prompt"]),
        ({"context": "Hi"}, ["wrong_type", "empty_prompt"]),
        ({"context": [{"role": "tool", "content": "x"}]}, ["wrong_type", "empty_prompt"]),
        ({"language": "python"}, ["unknown_language"]),
        ({"response2": " "}, ["empty_response"]),
    ],
)
def test_faults_of_preferences_are_named(changes: dict[str, Any], expected: list[str]) -> None:
    outcome = best_of_n.helpsteer3_outcome(a_row(HELPSTEER | changes))
    assert defects(outcome) == expected
    assert outcome.items == ()


# --- ratings ---


def rated(number: int, response: str, rating: Any, question: str = "中国人怎么过春节？") -> Row:
    value = {
        "question": question,
        "response": response,
        "human_rating": rating,
        "source": "LLM",
        "cul_type": "Social norms",
        "associated_culture": "Native (Chinese)",
    }
    return a_row(value, number)


def better_and_worse(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(item.responses[0], item.responses[1]) for outcome in outcomes for item in outcome.items]


def test_every_two_responses_rated_differently_are_a_pair_the_better_one_best() -> None:
    rows = [rated(1, "a", 3), rated(2, "b", 9), rated(3, "c", 3)]
    outcomes = list(ratings.care_outcomes(rows, None))
    assert sorted(better_and_worse(outcomes)) == [("b", "a"), ("b", "c")]
    assert all(outcome.imported for outcome in outcomes)
    item = next(item for outcome in outcomes for item in outcome.items)
    assert (item.language, item.culture, item.domain, item.best) == ("zh", "CN", "social norms", 0)


def test_rows_of_a_question_need_not_stand_together() -> None:
    rows = [rated(1, "a", 3), rated(2, "x", 5, "日本の正月は？"), rated(3, "b", 4), rated(4, "y", 6, "日本の正月は？")]
    outcomes = list(ratings.care_outcomes(rows, None))
    assert better_and_worse(outcomes) == [("b", "a"), ("y", "x")]
    assert {item.language for outcome in outcomes for item in outcome.items} == {"zh", "ja"}


def test_a_limit_takes_the_pairs_whose_ratings_differ_most() -> None:
    rows = [rated(1, "a", 1), rated(2, "b", 5), rated(3, "c", 10)]
    outcomes = list(ratings.care_outcomes(rows, 1))
    assert better_and_worse(outcomes) == [("c", "a")]
    assert all(outcome.imported for outcome in outcomes)


@pytest.mark.parametrize(
    "rows", [[rated(1, "a", 3)], [rated(1, "a", 3), rated(2, "b", 3)], [rated(1, "a", 3), rated(2, "a", 5)]]
)
def test_a_response_without_a_rival_is_named(rows: list[Row]) -> None:
    outcomes = list(ratings.care_outcomes(rows, None))
    assert [defects(outcome) for outcome in outcomes] == [["unpaired"]] * len(rows)


def test_no_row_is_lost_or_doubled() -> None:
    rows = [rated(i, f"r{i}", i % 12, f"问题{i % 7}？") for i in range(100)]
    assert sorted(outcome.row.number for outcome in ratings.care_outcomes(rows, 2)) == list(range(100))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"human_rating": 0}, ["bad_rating"]),
        ({"human_rating": 11}, ["bad_rating"]),
        ({"human_rating": "good"}, ["wrong_type"]),
        ({"human_rating": None}, ["missing_field"]),
        ({"question": "In English?"}, ["unknown_language"]),
        ({"response": ""}, ["empty_response"]),
        ({"associated_culture": None}, ["missing_field"]),
    ],
)
def test_faults_of_ratings_are_named(changes: dict[str, Any], expected: list[str]) -> None:
    (outcome,) = ratings.care_outcomes([a_row(rated(1, "a", 3).value | changes)], None)
    assert defects(outcome) == expected


def test_the_first_release_names_its_fields_otherwise_and_rates_in_text() -> None:
    rows = [
        a_row(
            {"question": "ما هو؟", "response": r, "rating": n, "culture_type": "Literacy", "associated_culture": c}, i
        )
        for i, (r, n, c) in enumerate([("أ", "7", "Native (Arab)"), ("ب", "2", "Native (Arab)")], 1)
    ]
    (item,) = (item for outcome in ratings.care_outcomes(rows, None) for item in outcome.items)
    assert (item.language, item.culture, item.domain) == ("ar", "Arab", "literacy")

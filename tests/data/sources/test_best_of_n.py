"""CARB, RewardBench 2 and the open rows: one item with its best response first, or the named reasons why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from data.tables import a_row, defects

from think_as_locals.data.rows import Outcome, Row
from think_as_locals.data.sources import best_of_n

CARB: dict[str, Any] = {
    "id": "17",
    "language": "Thai",
    "country": "Thailand",
    "prompt": "คนไทยทักทายผู้ใหญ่อย่างไร",
    "chosen": ["ไหว้"],
    "chosen_model": "m0",
    "rejected": ["จับมือ", "โค้งคำนับ", "หอมแก้ม"],
    "rejected_model": ["m1", "m2", "m3"],
    "num_correct": 1,
    "num_rejected": 3,
    "total_completions": 4,
    "source": "survey",
    "subset": "cultural_commonsense",
    "additional_metadata": '{"topic": "greeting"}',
    "category": "commonsense",
}
RB2: dict[str, Any] = {
    "id": "3",
    "prompt": "Name a river.",
    "chosen": ["The Nile."],
    "rejected": ["The Alps.", "Paris.", "Sand."],
    "num_correct": 1,
    "num_incorrect": 3,
    "total_completions": 4,
    "models": ["m"] * 4,
    "subset": "Factuality",
    "additional_metadata": {"category": None},
}
TIES = RB2 | {
    "id": "tied:5",
    "prompt": "Name a colour of the rainbow.",
    "chosen": ["Red.", "Blue.", "Green."],
    "rejected": [f"Wrong {i}." for i in range(9)],
    "num_correct": 3,
    "num_incorrect": 9,
    "total_completions": 12,
    "subset": "Ties",
}
OPEN: dict[str, Any] = {
    "id": "wq-de-0",
    "culture": "Germany",
    "language": "de",
    "domain": "linguistics",
    "source": "wikiquote-proverbs",
    "license": "CC-BY-SA-3.0",
    "group": "de0",
    "prompt": "A bird in the hand is worth two in the bush.",
    "chosen": "Ein Spatz in der Hand ist besser als eine Taube auf dem Dach.",
    "rejected": ["Ein Vogel in der Hand.", "Lebst du hinter dem Mond?"],
    "n": 3,
}


def test_a_row_of_carb_is_an_item() -> None:
    outcome = best_of_n.carb_outcome(a_row(CARB))
    (item,) = outcome.items
    assert not outcome.faults
    assert (item.id, item.culture, item.language, item.domain) == ("carb/commonsense/th/17", "TH", "th", "commonsense")
    assert (item.responses, item.best) == (("ไหว้", "จับมือ", "โค้งคำนับ", "หอมแก้ม"), 0)


@pytest.mark.parametrize(
    ("subset", "domain"),
    [("cultural_value", "value"), ("cultural_toxicity", "safety"), ("cultural_linguistic", "linguistic")],
)
def test_the_subsets_of_carb_are_the_four_domains(subset: str, domain: str) -> None:
    assert best_of_n.carb_outcome(a_row(CARB | {"subset": subset})).items[0].domain == domain


def test_the_country_of_a_row_of_carb_may_be_null() -> None:
    outcome = best_of_n.carb_outcome(a_row(CARB | {"country": None}))
    assert (outcome.items[0].culture, outcome.faults) == (None, ())


def test_the_same_prompt_is_the_same_question_group_however_it_is_set() -> None:
    first, second, other = (
        best_of_n.carb_outcome(a_row(CARB | {"prompt": prompt})).items[0].group
        for prompt in ("Who? ", "who?", "Who not?")
    )
    assert first == second != other


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompt": "How do people in Japan greet an elder?"}, ["country_mismatch"]),
        ({"prompt": "คนญี่ปุ่นทักทายอย่างไร"}, ["country_mismatch"]),
        ({"prompt": "How do people in Japan and Thailand greet?"}, []),
        ({"prompt": "How do people in Japan greet?", "country": None}, []),
        ({"num_rejected": 4, "total_completions": 5}, ["count_mismatch", "count_mismatch"]),
        ({"num_correct": None, "num_rejected": None, "total_completions": None}, []),
        ({"additional_metadata": "{not json"}, ["bad_metadata"]),
        ({"additional_metadata": None}, []),
        ({"subset": "cultural_cooking"}, ["unknown_domain"]),
    ],
)
def test_a_suspicious_row_of_carb_is_an_item_all_the_same(changes: dict[str, Any], expected: list[str]) -> None:
    outcome = best_of_n.carb_outcome(a_row(CARB | changes))
    assert defects(outcome) == expected
    assert len(outcome.items) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompt": None}, ["missing_field"]),
        ({"prompt": " "}, ["empty_prompt"]),
        ({"prompt": 7}, ["wrong_type"]),
        ({"prompt": "half \ud83d"}, ["broken_text"]),
        ({"language": "Klingonese"}, ["unknown_language"]),
        ({"language": None}, ["missing_field"]),
        ({"country": "Atlantis"}, ["unknown_culture"]),
        ({"chosen": []}, ["wrong_count", "count_mismatch", "count_mismatch"]),
        ({"chosen": ["a", "b"], "num_correct": 2, "total_completions": 5}, ["wrong_count"]),
        ({"chosen": [""]}, ["empty_response"]),
        ({"chosen": [None]}, ["wrong_type"]),
        ({"rejected": {"a": 1}}, ["wrong_type"]),
        ({"rejected": [], "num_rejected": 0, "total_completions": 1}, ["wrong_count"]),
        ({"rejected": ["ไหว้", "จับมือ", "โค้งคำนับ"]}, ["identical_responses"]),
        ({"rejected": list("abcdefgh"), "num_rejected": 8, "total_completions": 9}, ["wrong_count"]),
        (
            {"prompt": " ", "language": "Klingonese", "chosen": [" "]},
            ["empty_prompt", "unknown_language", "empty_response"],
        ),
    ],
)
def test_a_row_of_carb_that_is_no_item_has_every_fault_named(changes: dict[str, Any], expected: list[str]) -> None:
    outcome = best_of_n.carb_outcome(a_row(CARB | changes))
    assert defects(outcome) == expected
    assert outcome.items == ()
    assert not outcome.imported


@pytest.mark.parametrize("reader", [best_of_n.carb_outcome, best_of_n.rewardbench2_outcome, best_of_n.open_outcome])
@pytest.mark.parametrize("value", [None, 7, "text", [1], {}])
def test_whatever_a_row_is_it_is_named_and_never_raises(reader: Callable[[Row], Outcome], value: Any) -> None:
    outcome = reader(a_row(value))
    assert outcome.items == ()
    assert set(defects(outcome)) == ({"missing_field"} if value == {} else {"not_an_object"})


def test_a_row_of_rewardbench_2_is_a_best_of_4_item() -> None:
    outcome = best_of_n.rewardbench2_outcome(a_row(RB2))
    (item,) = outcome.items
    assert not outcome.faults
    assert (item.id, item.domain, item.culture, item.language) == ("rewardbench2/3", "factuality", None, "en")
    assert item.responses[item.best] == "The Nile."
    assert len(item.responses) == 4


def test_a_row_of_ties_is_right_exactly_where_all_of_its_items_are() -> None:
    outcome = best_of_n.rewardbench2_outcome(a_row(TIES))
    assert not outcome.faults
    met = {(item.responses[item.best], wrong) for item in outcome.items for wrong in item.responses[1:]}
    # Every right answer meets every wrong one and no other right one.
    assert met == {(right, wrong) for right in TIES["chosen"] for wrong in TIES["rejected"]}
    assert len(outcome.items) == 3 * 2
    assert len({item.id for item in outcome.items}) == 6
    assert {item.group for item in outcome.items} == {"ties:5"}


@pytest.mark.parametrize(
    "changes", [{"rejected": [*TIES["rejected"][:8], "Wrong 0."]}, {"chosen": ["Red.", "Blue.", "Red."]}]
)
def test_the_same_response_twice_in_a_row_of_ties_is_named_wherever_it_stands(changes: dict[str, Any]) -> None:
    assert defects(best_of_n.rewardbench2_outcome(a_row(TIES | changes))) == ["identical_responses"]


@pytest.mark.parametrize("cell", ["['Red.' 'Blue.']", '["Red.", "Blue."'])
def test_a_list_in_a_cell_that_nobody_can_read_is_not_taken_for_a_response(cell: str) -> None:
    assert defects(best_of_n.carb_outcome(a_row(CARB | {"rejected": cell, "num_rejected": None}))) == ["wrong_type"]


def test_the_reference_of_a_tie_is_in_its_question_group() -> None:
    reference = TIES | {"id": "ref:5", "chosen": ["Red."], "num_correct": 1, "total_completions": 10}
    assert {item.group for item in best_of_n.rewardbench2_outcome(a_row(reference)).items} == {"ties:5"}


@pytest.mark.parametrize(
    ("value", "changes", "expected"),
    [
        (RB2, {"chosen": ["a", "b"], "num_correct": 2, "total_completions": 5}, ["wrong_count"]),
        (RB2, {"num_incorrect": 2}, ["count_mismatch"]),
        (TIES, {"chosen": [], "num_correct": 0, "total_completions": 9}, ["wrong_count"]),
        (TIES, {"rejected": [], "num_incorrect": 0, "total_completions": 3}, ["wrong_count"]),
        (TIES, {"rejected": ["Red.", "x"], "num_incorrect": 2, "total_completions": 5}, ["identical_responses"]),
    ],
)
def test_faults_of_rewardbench_2_are_named(value: dict[str, Any], changes: dict[str, Any], expected: list[str]) -> None:
    outcome = best_of_n.rewardbench2_outcome(a_row(value | changes))
    assert defects(outcome) == expected
    assert bool(outcome.items) == (expected == ["count_mismatch"])


def test_an_open_row_is_an_item() -> None:
    outcome = best_of_n.open_outcome(a_row(OPEN))
    (item,) = outcome.items
    assert not outcome.faults
    assert (item.id, item.group, item.culture, item.domain) == ("wq-de-0", "de0", "DE", "linguistic")
    assert (item.source, item.best, len(item.responses)) == ("carb_open/wikiquote-proverbs", 0, 3)


@pytest.mark.parametrize(
    ("culture", "code"),
    [("South_Korea", "KR"), ("Arab (Qatar)", "QA"), ("USA", "US"), ("English", None), ("Spanish-speaking", None)],
)
def test_the_cultures_of_the_open_rows_have_codes_where_there_are_any(culture: str, code: str | None) -> None:
    assert best_of_n.open_outcome(a_row(OPEN | {"culture": culture})).items[0].culture == code


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"culture": "Atlantis"}, ["unknown_culture"]),
        ({"culture": None}, ["missing_field"]),
        ({"rejected": ["Ein Vogel."] * 2}, ["identical_responses"]),
        ({"n": 4}, ["count_mismatch"]),
        ({"domain": "cooking"}, ["unknown_domain"]),
    ],
)
def test_faults_of_the_open_rows_are_named(changes: dict[str, Any], expected: list[str]) -> None:
    assert defects(best_of_n.open_outcome(a_row(OPEN | changes))) == expected

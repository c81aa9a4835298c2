"""Data sets whose rows name the best of several responses: each row becomes an item or a list of faults."""

from __future__ import annotations

from typing import Any

import pytest
from data.tables import a_row, defects

from think_as_locals.data.rows import Outcome
from think_as_locals.data.sources import carb, crisp_rm, helpsteer3, pairs, rewardbench2


def best_of_n(chosen: list[str], rejected: list[str], wrong: str = "num_incorrect", **fields: Any) -> dict[str, Any]:
    """A row with the number of its responses in three fields."""
    counts = {"num_correct": len(chosen), wrong: len(rejected), "total_completions": len(chosen + rejected)}
    return {"chosen": chosen, "rejected": rejected} | counts | fields


CARB = best_of_n(["ไหว้"], ["จับมือ", "โค้งคำนับ", "หอมแก้ม"], "num_rejected") | (
    {"id": "17", "language": "Thai", "country": "Thailand", "prompt": "คนไทยทักทายผู้ใหญ่อย่างไร"}
    | {"subset": "cultural_commonsense", "additional_metadata": '{"topic": "greeting"}', "category": "commonsense"}
)
RB2 = best_of_n(["The Nile."], ["The Alps.", "Paris.", "Sand."], id="3", prompt="Name a river.") | (
    {"subset": "Factuality", "additional_metadata": {"category": None}}
)
WRONG = [f"Wrong {i}." for i in range(9)]
TIES = best_of_n(["Red.", "Blue.", "Green."], WRONG, id="tied:5", prompt="Name a colour of the rainbow.", subset="Ties")
OPEN = (
    {"id": "wq-de-0", "culture": "Germany", "language": "de", "domain": "linguistics", "group": "de0", "n": 3}
    | {"source": "wikiquote-proverbs", "prompt": "A bird in the hand is worth two in the bush."}
    | {"chosen": "Ein Spatz in der Hand.", "rejected": ["Ein Vogel in der Hand.", "Lebst du hinter dem Mond?"]}
)
PAIR: dict[str, Any] = {"id": 31, "prompt": "How do I boil an egg?", "subset": "alpacaeval-easy"} | (
    {"chosen": "In boiling water.", "rejected": "I do not know."}
)
AB = {"prompt": "How do I boil an egg?", "response_a": "In boiling water.", "response_b": "I do not know."} | (
    {"winner": "model_a", "culture": "Thailand", "id": 5, "domain": "food"}
)
HELPSTEER: dict[str, Any] = {"domain": "multilingual", "language": "korean", "overall_preference": -2} | (
    {"context": [{"role": "user", "content": "한국의 아침 식사는?"}]}
    | {"response1": "밥과 국입니다.", "response2": "모르겠습니다."}
)
M_RB: dict[str, Any] = {"id": 12, "language": "zho_Hans", "prompt": "怎么煮鸡蛋？", "source": "alpacaeval-easy"} | (
    {
        "chosen": "放进开水里。",
        "rejected": "我不知道。",
        "category": "Chat Hard",
        "chosen_model": "m",
        "rejected_model": "n",
    }
)
CRISP: dict[str, Any] = {"question": "How do I greet an elder?", "culture": "Thai"} | (
    {"appropriate": "With a wai.", "generic": "Politely.", "opposite": "By patting the head."}
)
READERS = {
    "m_rewardbench": (pairs.m_rewardbench_outcome, M_RB),
    "crisp_rm": (crisp_rm.outcome, CRISP),
    "carb": (carb.outcome, CARB),
    "carb_open": (carb.open_outcome, OPEN),
    "rewardbench2": (rewardbench2.outcome, RB2),
    "ties": (rewardbench2.outcome, TIES),
    "pairs": (pairs.outcome, PAIR),
    "preferences": (pairs.preference_outcome, AB),
    "helpsteer3": (helpsteer3.outcome, HELPSTEER),
}
BOWL, UNKNOWN = HELPSTEER["response1"], HELPSTEER["response2"]
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "?"}]
BROKEN_TURN = {"role": "assistant", "content": "half \ud83d"}


def read(source: str, **changes: Any) -> Outcome:
    reader, value = READERS[source]
    return reader(a_row(value | changes))


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        ("carb", {}, {"id": "carb/commonsense/th/17", "culture": "TH", "language": "th", "domain": "commonsense"}),
        ("carb", {}, {"responses": ("ไหว้", "จับมือ", "โค้งคำนับ", "หอมแก้ม"), "best": 0, "source": "carb"}),
        ("carb", {"subset": "cultural_value"}, {"domain": "value"}),
        ("carb", {"subset": "cultural_toxicity"}, {"domain": "safety"}),
        ("carb", {"subset": "cultural_linguistic"}, {"domain": "linguistic"}),
        ("carb", {"country": None}, {"culture": "TH"}),
        ("carb", {"country": None, "language": "Spanish"}, {"culture": "Spanish-speaking countries"}),
        ("carb", {"country": None, "language": "French"}, {"culture": None}),
        ("carb", {"country": "Thai"}, {"culture": "TH"}),
        ("carb", {"prompt": "How do people in Japan and Thailand greet?"}, {"culture": "TH"}),
        ("carb", {"prompt": "How do people in Japan greet?", "country": None}, {"culture": "TH"}),
        ("carb", dict.fromkeys(("num_correct", "num_rejected", "total_completions", "additional_metadata")), {}),
        ("rewardbench2", {}, {"id": "rewardbench2/3", "domain": "factuality", "culture": None, "language": "en"}),
        ("rewardbench2", {}, {"responses": ("The Nile.", "The Alps.", "Paris.", "Sand."), "best": 0}),
        ("carb_open", {}, {"id": "wq-de-0", "group": "de0", "culture": "DE", "domain": "linguistic", "language": "de"}),
        ("carb_open", {"culture": "USA"}, {"source": "carb_open/wikiquote-proverbs", "best": 0, "culture": "US"}),
        ("carb_open", {"culture": "Arab (Qatar)"}, {"culture": "QA"}),
        ("carb_open", {"culture": "English"}, {"culture": None}),
        ("carb_open", {"culture": "Spanish-speaking"}, {"culture": None}),
        ("pairs", {}, {"id": "pairs/en/alpacaeval-easy/31", "language": "en", "domain": "alpacaeval-easy"}),
        ("pairs", {}, {"group": "alpacaeval-easy/31", "responses": ("In boiling water.", "I do not know."), "best": 0}),
        # A translation is in the question group of its original.
        ("pairs", {"language": "deu_Latn"}, {"id": "pairs/de/alpacaeval-easy/31", "group": "alpacaeval-easy/31"}),
        ("pairs", {"id": None, "subset": None}, {"id": "pairs/rows.jsonl-7", "domain": "pairs"}),
        ("preferences", {}, {"id": "preferences/en/food/5", "culture": "TH", "domain": "food", "group": "food/5"}),
        *(
            ("preferences", {"winner": None, name: value}, {"responses": (AB["response_a"], AB["response_b"])})
            for name, value in (("preference", "A"), ("preferred", " response_a "), ("label", "Answer_A"))
        ),
        *(
            ("preferences", {"winner": value}, {"responses": (AB["response_b"], AB["response_a"]), "best": 0})
            for value in ("B", "b", "model_b", "Response_B")
        ),
        (
            "m_rewardbench",
            {},
            {"id": "m_rewardbench/zh/alpacaeval-easy/12", "group": "m_rewardbench/alpacaeval-easy/12"},
        ),
        ("m_rewardbench", {}, {"domain": "chat hard", "language": "zh", "culture": None, "source": "m_rewardbench"}),
        ("m_rewardbench", {}, {"responses": ("放进开水里。", "我不知道。"), "best": 0}),
        ("m_rewardbench", {"language": "deu_Latn"}, {"group": "m_rewardbench/alpacaeval-easy/12", "language": "de"}),
        ("m_rewardbench", {"category": None}, {"domain": "translation"}),
        ("crisp_rm", {}, {"culture": "TH", "language": "en", "domain": "crisp_rm", "source": "crisp_rm"}),
        ("crisp_rm", {}, {"responses": ("With a wai.", "Politely.", "By patting the head."), "best": 0}),
        ("crisp_rm", {"culture": None, "country": "Kabylia", "id": 3}, {"id": "crisp_rm/Kabylia/en/3"}),
        ("crisp_rm", {"question": None, "prompt": "?", "category": "food", "language": "Thai"}, {"domain": "food"}),
        ("crisp_rm", {"scenario": "At work.", "question": "What now?"}, {"prompt": "At work.\n\nWhat now?"}),
        ("helpsteer3", {}, {"prompt": "한국의 아침 식사는?", "language": "ko", "domain": "multilingual"}),
        *(("helpsteer3", {"overall_preference": n}, {"responses": (BOWL, UNKNOWN), "best": 0}) for n in (-3, -1)),
        *(("helpsteer3", {"overall_preference": n}, {"responses": (UNKNOWN, BOWL), "best": 0}) for n in (1, 3)),
        ("helpsteer3", {"context": TURNS}, {"prompt": "user: Hi\n\nassistant: Hello\n\nuser: ?"}),
        ("helpsteer3", {"domain": "code", "language": "python"}, {"language": "en"}),
    ],
)
def test_valid_row_becomes_an_item(source: str, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    outcome = read(source, **changes)
    (item,) = outcome.items
    assert not outcome.faults
    assert {name: getattr(item, name) for name in expected} == expected


def test_scenarios_of_one_norm_share_a_group() -> None:
    asked = [("Greet.", "Elders first."), ("Bow.", "Elders first."), ("Bow.", "Guests first."), ("Bow.", None)]
    groups = [read("crisp_rm", scenario=scenario, norm=norm).items[0].group for scenario, norm in asked]
    assert groups[0] == groups[1]
    assert len({*groups}) == 3


def test_group_ignores_case_and_whitespace_of_the_prompt() -> None:
    groups = [read("carb", prompt=prompt).items[0].group for prompt in ("Who? ", "who?", "Who not?")]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        ("carb", {"prompt": "How do people in Japan greet an elder?"}, ["country_mismatch"]),
        ("carb", {"prompt": "คนญี่ปุ่นทักทายอย่างไร"}, ["country_mismatch"]),
        ("carb", {"num_rejected": 4, "total_completions": 5}, ["count_mismatch", "count_mismatch"]),
        ("carb", {"additional_metadata": "{not json"}, ["bad_metadata"]),
        ("carb", {"subset": "cultural_cooking"}, ["unknown_domain"]),
        ("rewardbench2", {"num_incorrect": 2}, ["count_mismatch"]),
        ("carb_open", {"n": 4}, ["count_mismatch"]),
        ("carb_open", {"domain": "cooking"}, ["unknown_domain"]),
    ],
)
def test_suspicious_row_is_imported_with_a_warning(source: str, changes: dict[str, Any], expected: list[str]) -> None:
    outcome = read(source, **changes)
    assert defects(outcome) == expected
    assert len(outcome.items) == 1


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        ("carb", {"prompt": None}, ["missing_field"]),
        ("carb", {"prompt": 7}, ["wrong_type"]),
        ("carb", {"prompt": "half \ud83d", "country": "Atlantis"}, ["broken_text", "unknown_culture"]),
        ("carb", {"language": None}, ["missing_field"]),
        ("carb", {"chosen": []}, ["wrong_count", "count_mismatch", "count_mismatch"]),
        ("carb", {"chosen": ["a", "b"], "num_correct": 2, "total_completions": 5}, ["wrong_count"]),
        ("carb", {"chosen": [None]}, ["wrong_type"]),
        ("carb", {"rejected": {"a": 1}}, ["wrong_type"]),
        ("carb", {"rejected": [], "num_rejected": 0, "total_completions": 1}, ["wrong_count"]),
        ("carb", {"rejected": ["ไหว้", "จับมือ", "โค้งคำนับ"]}, ["identical_responses"]),
        ("carb", {"rejected": list("abcdefgh"), "num_rejected": 8, "total_completions": 9}, ["wrong_count"]),
        # A list in a cell that nobody can parse is not taken for a response.
        ("carb", {"rejected": "['Red.' 'Blue.']", "num_rejected": None}, ["wrong_type"]),
        ("carb", {"rejected": '["Red.", "Blue."', "num_rejected": None}, ["wrong_type"]),
        ("carb", {"prompt": " ", "language": "Klingonese"}, ["empty_prompt", "unknown_language"]),
        ("carb", {"chosen": [" "]}, ["empty_response"]),
        ("rewardbench2", {"chosen": ["a", "b"], "num_correct": 2, "total_completions": 5}, ["wrong_count"]),
        ("ties", {"chosen": [], "num_correct": 0, "total_completions": 9}, ["wrong_count"]),
        ("ties", {"rejected": [], "num_incorrect": 0, "total_completions": 3}, ["wrong_count"]),
        ("ties", {"rejected": ["Red.", "x"], "num_incorrect": 2, "total_completions": 5}, ["identical_responses"]),
        # Wherever the same response stands twice: the two of the same text are in no item together.
        ("ties", {"rejected": [*TIES["rejected"][:8], "Wrong 0."]}, ["identical_responses"]),
        ("ties", {"chosen": ["Red.", "Blue.", "Red."]}, ["identical_responses"]),
        ("carb_open", {"culture": "Atlantis"}, ["unknown_culture"]),
        ("carb_open", {"culture": None}, ["missing_field"]),
        ("carb_open", {"rejected": ["Ein Vogel."] * 2}, ["identical_responses"]),
        ("pairs", {"chosen": PAIR["rejected"]}, ["identical_responses"]),
        ("pairs", {"prompt": ["a"], "rejected": ""}, ["wrong_type", "empty_prompt", "empty_response"]),
        ("pairs", {"language": "xx_Xxxx"}, ["unknown_language"]),
        ("pairs", {"chosen": None, "prompt": None}, ["missing_field", "missing_field"]),
        # Some count responses from 0, some from 1.
        *(("preferences", {"winner": value}, ["bad_rating"]) for value in ("1", "0", "first", "C")),
        ("preferences", {"winner": 1}, ["wrong_type"]),
        ("preferences", {"winner": "tie (bothbad)"}, ["tie"]),
        ("preferences", {"winner": "A", "response_b": ""}, ["empty_response"]),
        ("preferences", {"winner": None}, ["missing_field"]),
        ("m_rewardbench", {"id": None, "rejected": ""}, ["missing_field", "empty_response"]),
        ("m_rewardbench", {"language": None}, ["missing_field"]),
        ("crisp_rm", {"opposite": None, "culture": "Thialand"}, ["unknown_culture", "missing_field"]),
        ("crisp_rm", {"generic": "With a wai."}, ["identical_responses"]),
        ("helpsteer3", {"overall_preference": 0}, ["tie"]),
        ("helpsteer3", {"overall_preference": 4}, ["bad_rating"]),
        ("helpsteer3", {"overall_preference": 0.5}, ["bad_rating"]),
        *(("helpsteer3", {"overall_preference": value}, ["wrong_type"]) for value in ("much", True)),
        ("helpsteer3", {"overall_preference": None, "context": []}, ["empty_prompt", "missing_field"]),
        ("helpsteer3", {"context": "Hi"}, ["wrong_type", "empty_prompt"]),
        ("helpsteer3", {"context": [{"role": "tool", "content": "x"}]}, ["wrong_type", "empty_prompt"]),
        ("helpsteer3", {"context": [*TURNS, BROKEN_TURN]}, ["broken_text"]),
        ("helpsteer3", {"language": "python", "response2": " "}, ["unknown_language", "empty_response"]),
    ],
)
def test_invalid_row_reports_every_fault(source: str, changes: dict[str, Any], expected: list[str]) -> None:
    outcome = read(source, **changes)
    assert defects(outcome) == expected
    assert (outcome.items, outcome.imported) == ((), False)


@pytest.mark.parametrize(("changes", "named"), [({"winner": None}, "winner"), ({}, "preference")])
def test_missing_field_is_called_by_the_column_of_the_file_or_the_documented_one(
    changes: dict[str, Any], named: str
) -> None:
    row = {name: AB[name] for name in ("prompt", "response_a", "response_b")} | changes
    (fault,) = pairs.preference_outcome(a_row(row)).faults
    assert fault.detail == f"missing {named}"


def test_tie_is_skipped_without_an_error() -> None:
    (fault,) = read("helpsteer3", overall_preference=0).faults
    assert fault.defect.severity == "skipped"


@pytest.mark.parametrize("source", READERS)
@pytest.mark.parametrize("value", [None, 7, "text", [1], {}])
def test_malformed_row_is_reported_without_raising(source: str, value: Any) -> None:
    outcome = READERS[source][0](a_row(value))
    assert outcome.items == ()
    assert set(defects(outcome)) == ({"missing_field"} if value == {} else {"not_an_object"})


def test_ties_row_pairs_every_correct_with_every_wrong_response() -> None:
    outcome = read("ties")
    assert not outcome.faults
    met = {(item.responses[item.best], wrong) for item in outcome.items for wrong in item.responses[1:]}
    # Every right answer meets every wrong one and no other right one.
    assert met == {(right, wrong) for right in TIES["chosen"] for wrong in TIES["rejected"]}
    assert len({item.id for item in outcome.items}) == len(outcome.items) == 3 * 2
    reference = read("ties", id="ref:5", chosen=["Red."], num_correct=1, total_completions=10)
    assert {item.group for item in (*outcome.items, *reference.items)} == {"ties:5"}

"""CARB, its open rows and RewardBench 2: each row becomes items or a list of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from data.tables import a_row, fault_names

from think_as_locals.data.rows import Fault, Outcome, Row
from think_as_locals.data.sources import carb, rewardbench2
from think_as_locals.judging import render
from think_as_locals.types import Item


def best_of_n(chosen: list[str], rejected: list[str], wrong: str = "num_incorrect", **fields: Any) -> dict[str, Any]:
    """A row with the number of its responses in three fields."""
    counts = {"num_correct": len(chosen), wrong: len(rejected), "total_completions": len(chosen + rejected)}
    return {"chosen": chosen, "rejected": rejected} | counts | fields


CARB = best_of_n(["ไหว้"], ["จับมือ", "โค้งคำนับ", "หอมแก้ม"], "num_rejected") | (
    {"id": "17", "language": "Thai", "country": "Thailand", "prompt": "คนไทยทักทายผู้ใหญ่อย่างไร"}
    | {"subset": "cultural_commonsense", "additional_metadata": '{"topic": "greeting"}', "category": "commonsense"}
)
RB2 = best_of_n(["The Nile."], ["The Alps.", "Paris.", "Sand."], id="3", prompt="Name a river.", subset="Factuality")
WRONG = [f"Wrong {i}." for i in range(9)]
TIES = best_of_n(["Red.", "Blue.", "Green."], WRONG, id="tied:5", prompt="Name a colour of the rainbow.", subset="Ties")
OPEN = (
    {"id": "wq-de-0", "culture": "Germany", "language": "de", "domain": "linguistics", "group": "de0", "n": 3}
    | {"source": "wikiquote-proverbs", "prompt": "A bird in the hand is worth two in the bush."}
    | {"chosen": "Ein Spatz in der Hand.", "rejected": ["Ein Vogel in der Hand.", "Lebst du hinter dem Mond?"]}
)
RB2_ITEMS = partial(rewardbench2.items, culture=None)
READERS: dict[str, tuple[Callable[[Row], Iterable[Item | Fault]], dict[str, Any]]] = {
    "carb": (carb.items, CARB),
    "carb_open": (carb.open_items, OPEN),
    "rewardbench2": (RB2_ITEMS, RB2),
    "ties": (RB2_ITEMS, TIES),
}


def read(source: str, **changes: Any) -> Outcome:
    items, value = READERS[source]
    return Outcome.of(a_row(value | changes), items)


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        ("carb", {}, {"id": "carb/commonsense/th/17", "culture": "TH", "language": "th", "domain": "commonsense"}),
        ("carb", {}, {"responses": ("ไหว้", "จับมือ", "โค้งคำนับ", "หอมแก้ม"), "best": 0, "source": "carb"}),
        *(("carb", {"subset": f"cultural_{theirs}"}, {"domain": domain})
          for theirs, domain in (("value", "value"), ("toxicity", "safety"), ("linguistic", "linguistic"))),
        ("carb", dict.fromkeys(("num_correct", "num_rejected", "total_completions", "additional_metadata")), {}),
        ("carb", {"chosen": '["ไหว้"]', "rejected": "['จับมือ', 'โค้งคำนับ']", "num_rejected": "2", "total_completions": 3},
         {"responses": ("ไหว้", "จับมือ", "โค้งคำนับ")}),
        ("rewardbench2", {}, {"id": "rewardbench2/3", "domain": "factuality", "culture": None, "language": "en"}),
        ("rewardbench2", {}, {"responses": ("The Nile.", "The Alps.", "Paris.", "Sand."), "best": 0}),
        ("carb_open", {}, {"id": "wq-de-0", "group": "de0", "culture": "DE", "domain": "linguistic", "language": "de"}),
        ("carb_open", {"culture": "USA"}, {"source": "carb_open/wikiquote-proverbs", "best": 0, "culture": "US"}),
        ("carb_open", {"culture": "Arab (Qatar)"}, {"culture": "QA"}),
        ("carb_open", {"culture": "English"}, {"culture": None}),
    ],
)  # fmt: skip
def test_valid_row_becomes_an_item(source: str, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    outcome = read(source, **changes)
    (item,) = outcome.items
    assert not outcome.faults
    assert {name: getattr(item, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("language", "country", "place"),
    [
        *((name, None, f"{name}-speaking countries") for name in ("Arabic", "English", "Spanish")),
        *(("Chinese", None, "China"), ("German", None, "Germany"), ("Japanese", None, "Japan")),
        *(("Korean", None, "South Korea"), ("Russian", None, "Russia"), ("Vietnamese", None, "Vietnam")),
        *(("Thai", country, "Thailand") for country in (None, "Thai", "Thailand")),
        *(("English", "British", "United Kingdom"), ("Arabic", "Saudi Arabian", "Saudi Arabia")),
    ],
)
def test_prompt_of_carb_names_the_country_or_what_stands_for_the_language(
    language: str, country: str | None, place: str
) -> None:
    (item,) = read("carb", language=language, country=country).items
    assert f"Culture: {place}\n" in render(item)[-1]["content"]


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        ("carb", {"num_rejected": 4, "total_completions": 5}, ["count_mismatch", "count_mismatch"]),
        *(
            (source, {count: 2}, ["count_mismatch"])
            for source, count in (("rewardbench2", "num_incorrect"), ("carb_open", "n"))
        ),
        ("carb", {"subset": "cultural_cooking"}, ["unknown_domain"]),
        ("carb_open", {"domain": "cooking"}, ["unknown_domain"]),
        ("carb", {"prompt": None}, ["missing"]),
        ("carb", {"prompt": "half \ud83d", "country": "Atlantis"}, ["broken_text", "unknown_culture"]),
        ("carb", {"chosen": ["a", "b"], "num_correct": 2}, ["too_long"]),
        # A list in a cell that nobody can parse is not taken for a response.
        ("carb", {"rejected": "['Red.' 'Blue.']", "num_rejected": None}, ["tuple_type"]),
        ("carb", {"prompt": " ", "language": "Klingonese"}, ["blank", "unknown_language"]),
        ("rewardbench2", {"chosen": ["a", "b"], "num_correct": 2, "total_completions": 5}, ["too_many_chosen"]),
        ("ties", {"chosen": [], "num_correct": 0, "total_completions": 9}, ["invalid_ties"]),
        # Even where the two of the same text are in no item together.
        ("ties", {"rejected": [*TIES["rejected"][:8], "Red."]}, ["invalid_ties", "invalid_item"]),
        ("carb_open", {"culture": "Atlantis"}, ["unknown_culture"]),
    ],
)
def test_invalid_or_suspicious_row_reports_every_fault(
    source: str, changes: dict[str, Any], expected: list[str]
) -> None:
    outcome = read(source, **changes)
    assert fault_names(outcome) == expected
    is_suspicious = {*expected} <= {"count_mismatch", "unknown_domain"}  # it is imported with a warning
    assert (len(outcome.items), outcome.imported) == (is_suspicious, is_suspicious)


def test_group_ignores_case_and_whitespace_of_the_prompt() -> None:
    groups = [read("carb", prompt=prompt).items[0].group for prompt in ("Who? ", "who?", "Who not?")]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize("changes", [{"chosen": ["Red.", "Blue.", "Red."]}, {"rejected": [*TIES["rejected"][:8]] * 2}])
def test_equal_responses_of_a_ties_row_are_one(changes: dict[str, Any]) -> None:
    (name, texts), expected = *changes.items(), TIES | changes
    once = read("ties", **{name: [*dict.fromkeys(texts)], "num_correct": None, "num_incorrect": None})
    twice = read("ties", **{name: texts, "num_correct": None, "num_incorrect": None})
    assert twice.items == once.items
    assert len(twice.items) == len({*expected["chosen"]}) * -(-len({*expected["rejected"]}) // 7)


def test_ties_row_pairs_every_correct_with_every_wrong_response() -> None:
    outcome = read("ties")
    assert not outcome.faults
    met = {(item.responses[item.best], wrong) for item in outcome.items for wrong in item.responses[1:]}
    # Every right answer meets every wrong one and no other right one.
    assert met == {(right, wrong) for right in TIES["chosen"] for wrong in TIES["rejected"]}
    assert len({item.id for item in outcome.items}) == len(outcome.items) == 3 * 2
    reference = read("ties", id="ref:5", chosen=["Red."], num_correct=1, total_completions=10)
    assert {item.group for item in (*outcome.items, *reference.items)} == {"ties:5"}

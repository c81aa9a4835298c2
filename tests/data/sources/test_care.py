"""CARE: any two responses to a question with different ratings become a pair, the higher-rated one best."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from data.tables import a_row, fault_names
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.data.rows import Outcome, Row
from think_as_locals.data.sources import care
from think_as_locals.types import Item

JAPANESE = "日本の正月は？"


def rated(number: int, response: str, rating: Any, question: str = "中国人怎么过春节？") -> Row:
    value = {"question": question, "response": response, "human_rating": rating, "source": "LLM"}
    return a_row(value | {"cul_type": "Social norms", "associated_culture": "Native (Chinese)"}, number)


def items_of(outcomes: list[Outcome]) -> list[Item]:
    return [item for outcome in outcomes for item in outcome.items]


def read(*rows: Row, limit: int | None = None) -> tuple[list[Outcome], list[tuple[str, ...]]]:
    """What became of the rows, and the pairs in them, better response first."""
    outcomes = list(care.outcomes(rows, limit))
    return outcomes, [item.responses for item in items_of(outcomes)]


def test_responses_with_different_ratings_become_pairs() -> None:
    outcomes, pairs = read(rated(1, "a", 3), rated(2, "b", 9), rated(3, "c", 3))
    assert sorted(pairs) == [("b", "a"), ("b", "c")]
    assert all(outcome.imported for outcome in outcomes)
    item = items_of(outcomes)[0]
    assert (item.language, item.culture, item.domain, item.best) == ("zh", "CN", "social norms", 0)
    rows = [rated(1, "a", 3), rated(2, "x", 5, JAPANESE), rated(3, "b", 4), rated(4, "y", 6, JAPANESE)]
    outcomes, pairs = read(*rows)
    assert pairs == [("b", "a"), ("y", "x")]
    assert {item.language for item in items_of(outcomes)} == {"zh", "ja"}
    for rival in (rated(2, "b", 3), rated(2, "a", 5)):  # of the same rating, and the same text
        assert [fault_names(outcome) for outcome in read(rated(1, "a", 3), rival)[0]] == [["unpaired"]] * 2


def test_first_release_and_several_files_are_read() -> None:
    names = {"rating": "7", "culture_type": "Literacy", "associated_culture": "Native (Arab)"}
    old = {"question": "ما هو؟", "response": "أ", **names}
    rows = [a_row(old, 1), a_row(old | {"response": "ب", "rating": "2"}, 2)]
    (item,) = items_of(read(*rows)[0])
    assert (item.responses, item.language, item.culture, item.domain) == (("أ", "ب"), "ar", "Arab", "literacy")
    places = [("a.jsonl", 1, 9), ("a.jsonl", 2, 2), ("b.jsonl", 1, 3), ("b.jsonl", 2, 4)]
    rows = [Row(file, n, rated(n, f"{file} {n}", rating).value, "") for file, n, rating in places]
    assert len({item.id for item in items_of(read(*rows)[0])}) == 6


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"human_rating": 0, "response": ""}, ["blank", "greater_than_equal"]),
        ({"question": "In English?"}, ["unknown_language"]),
        ({"associated_culture": "Native (nan)"}, ["unknown_culture"]),
    ],
)
def test_invalid_row_reports_every_fault(changes: dict[str, Any], expected: list[str]) -> None:
    (outcome,) = care.outcomes([a_row(rated(1, "a", 3).value | changes)], None)
    assert fault_names(outcome) == expected


@given(ratings=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 4)), max_size=7), limit=st.integers(1, 5))
def test_limit_keeps_pairs_with_the_largest_rating_gaps(ratings: list[tuple[str, int]], limit: int) -> None:
    rows = [rated(i, text, rating) for i, (text, rating) in enumerate(ratings)]
    expected = sorted(
        abs(one[1] - other[1]) for one, other in combinations(ratings, 2) if one[0] != other[0] and one[1] != other[1]
    )
    imported = [outcome.imported for outcome in read(*rows)[0]]
    for kept in (None, limit):
        outcomes, _ = read(*rows, limit=kept)
        assert [outcome.imported for outcome in outcomes] == imported
        assert [outcome.row.number for outcome in outcomes] == list(range(len(rows)))
        gaps = []
        for outcome in outcomes:
            for item in outcome.items:
                worse = int(item.id.rpartition("/")[2])
                assert item.responses == (ratings[outcome.row.number][0], ratings[worse][0])
                gaps.append(ratings[outcome.row.number][1] - ratings[worse][1])
        assert sorted(gaps) == (expected if kept is None else expected[max(0, len(expected) - limit) :])

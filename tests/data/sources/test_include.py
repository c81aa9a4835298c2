"""INCLUDE's rows become items whose responses are the options."""

from __future__ import annotations

from typing import Any

import pytest

from think_as_locals.data.rows import Row
from think_as_locals.data.sources.include import outcome

ROW = {
    "language": "Thai",
    "country": "Thailand",
    "domain": "Social Science",
    "subject": "History",
    "regional_feature": "region explicit",
    "level": "Secondary",
    "question": "ใครเป็นกษัตริย์องค์แรกของสุโขทัย?",
    "option_a": "a",
    "option_b": "b",
    "option_c": "c",
    "option_d": "d",
    "answer": 2,
}


def row(**changes: Any) -> Row:
    return Row("include.jsonl", 7, {**ROW, **changes}, "")


@pytest.mark.parametrize("answer", range(4))
def test_options_keep_their_order_and_the_answer_is_best(answer: int) -> None:
    (item,) = outcome(row(answer=answer)).items
    assert (item.responses, item.best) == (("a", "b", "c", "d"), answer)
    assert (item.culture, item.language, item.domain) == ("TH", "th", "Social Science")
    assert (item.id, item.source, item.prompt) == ("include/include.jsonl-7", "include", ROW["question"])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"answer": 4}, "answer must be an index from 0 to 3, got 4"),
        ({"answer": 1.5}, "answer must be an index from 0 to 3, got 1.5"),
        ({"answer": "C"}, "answer must be a number, got 'C'"),
        ({"option_d": None}, "missing option_d"),
        ({"option_d": "a"}, "responses must be distinct"),
        ({"language": "Klingonese"}, "language 'Klingonese'"),
    ],
)
def test_invalid_row_reports_its_fault(changes: dict[str, Any], fault: str) -> None:
    found = outcome(row(**changes))
    assert not found.items
    assert any(fault in each.detail for each in found.faults), found.faults

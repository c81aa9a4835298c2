"""The types that every layer shares: validation, immutability."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from items import make_item

from think_as_locals.types import DataError, Item, RewardBreakdown


def an_item(**changes: Any) -> Item:
    return make_item(**{"best": 1} | changes)


@pytest.mark.parametrize("name", ["id", "prompt", "language", "domain", "group", "source"])
@pytest.mark.parametrize("value", ["", " \t\n", "\u3000", None, 7, True, ["x"], "half of an emoji \ud83d"])
def test_item_rejects_invalid_text_field(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=rf"{name} must be a non-blank string"):
        an_item(**{name: value})


@pytest.mark.parametrize("value", ["", " \n", None, 3, True, b"bytes", ["nested"], {"text": "nested"}])
def test_item_error_names_the_invalid_response_or_origin(value: Any) -> None:
    with pytest.raises(DataError, match=r"responses\[2\] must be a non-blank string"):
        an_item(responses=("a", "b", value))
    with pytest.raises(DataError, match=r"origins\[1\] must be a non-blank string"):
        an_item(origins=("TH", value, "KR"))


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("culture", ["", "  ", False, True, 47], "culture must be a non-blank string or None.*quote"),
        ("responses", ["ABC", None, 3], "responses must be a sequence of texts"),
        ("responses", [("a", "b", "a")], "responses must be distinct"),
        ("best", [-1, 3, 99, True, False, 1.0, "1", None], "best must be an index from 0 to 2"),
        ("origins", [("TH",), ("TH", "JP"), ("TH", "JP", "KR", "VN")], "origins must be empty or name a culture per"),
    ],
)
def test_item_error_names_the_item_and_the_problem(field: str, values: list[Any], message: str) -> None:
    for value in values:
        with pytest.raises(DataError, match=f"item 'kr-77': {message}"):
            an_item(id="kr-77", **{field: value})
    assert an_item(culture=None).culture is None


@pytest.mark.parametrize("count", [0, 1, 9, 20])
def test_item_rejects_fewer_than_two_or_more_than_eight_responses(count: int) -> None:
    with pytest.raises(DataError, match=f"expected 2 to 8 responses, got {count}"):
        an_item(responses=tuple(f"answer {i}" for i in range(count)), best=0)


def test_item_converts_lists_to_tuples_and_is_immutable() -> None:
    item = an_item(responses=["a", "b"], origins=["TH", "JP"])
    assert (item.responses, item.origins) == (("a", "b"), ("TH", "JP"))
    assert hash(item) == hash(an_item(responses=("a", "b"), origins=("TH", "JP")))
    with pytest.raises(dataclasses.FrozenInstanceError):
        item.best = 0  # type: ignore[misc]


def test_total_is_the_weighted_sum_of_the_parts() -> None:
    breakdown = RewardBreakdown({"correctness": -1.0, "structure": 0.5})
    assert breakdown.total({"correctness": 2.0, "structure": 0.2}) == pytest.approx(-1.9)
    assert breakdown.total({"structure": 3.0}) == pytest.approx(1.5)
    assert breakdown.total({}) == 0.0
    with pytest.raises(KeyError, match="gain"):
        breakdown.total({"gain": 1.0, "structure": 1.0})

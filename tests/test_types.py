"""The words every layer speaks in: validation, immutability."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from items import make_item

from think_as_locals.types import (
    LABELS,
    ConfigError,
    DataError,
    Item,
    PreflightError,
    RewardBreakdown,
    ThinkAsLocalsError,
)


def an_item(**changes: Any) -> Item:
    return make_item(**{"best": 1} | changes)


@pytest.mark.parametrize("name", ["id", "prompt", "language", "domain", "group", "source"])
@pytest.mark.parametrize("value", ["", " \t\n", "\u3000", None, 7, True, ["x"]])
def test_item_refuses_a_text_field_that_is_blank_or_no_string(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=rf"{name} must be a non-blank string"):
        an_item(**{name: value})


@pytest.mark.parametrize("value", ["", "  ", False, True, 47])
def test_item_refuses_a_culture_that_is_blank_or_no_string(value: Any) -> None:
    with pytest.raises(DataError, match=r"culture must be a non-blank string or None.*quote"):
        an_item(culture=value)


def test_item_may_name_no_culture() -> None:
    assert an_item(culture=None).culture is None


@pytest.mark.parametrize("count", [0, 1, 9, 20])
def test_item_refuses_fewer_than_two_and_more_than_eight_responses(count: int) -> None:
    with pytest.raises(DataError, match=f"expected 2 to 8 responses, got {count}"):
        an_item(responses=tuple(f"answer {i}" for i in range(count)), best=0)


@pytest.mark.parametrize("count", range(2, 9))
def test_item_takes_two_to_eight_responses(count: int) -> None:
    assert len(an_item(responses=[f"answer {i}" for i in range(count)], best=count - 1).responses) == count


def test_item_refuses_the_same_response_twice() -> None:
    with pytest.raises(DataError, match="responses must be distinct"):
        an_item(responses=("a", "b", "a"))


@pytest.mark.parametrize("response", ["", " \n", None, 3, True, b"bytes"])
def test_item_names_the_response_that_is_blank_or_no_string(response: Any) -> None:
    with pytest.raises(DataError, match=r"responses\[2\] must be a non-blank string"):
        an_item(responses=("a", "b", response))


@pytest.mark.parametrize("response", [["nested"], {"text": "nested"}])
def test_item_names_the_response_that_is_a_list_or_a_mapping(response: Any) -> None:
    with pytest.raises(DataError, match=r"responses\[1\] must be a non-blank string"):
        an_item(responses=("a", response), best=0)


@pytest.mark.parametrize("responses", ["AB", None, 3])
def test_item_refuses_responses_that_are_no_sequence_of_texts(responses: Any) -> None:
    with pytest.raises(DataError, match="responses"):
        an_item(responses=responses, best=0)


@pytest.mark.parametrize("best", [-1, 3, 99, True, False, 1.0, "1", None])
def test_item_refuses_a_best_that_is_no_index(best: Any) -> None:
    with pytest.raises(DataError, match="best must be an index from 0 to 2"):
        an_item(best=best)


@pytest.mark.parametrize("origins", [("TH",), ("TH", "JP"), ("TH", "JP", "KR", "VN")])
def test_item_refuses_origins_that_do_not_go_with_its_responses(origins: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="origins must be empty or name a culture per response"):
        an_item(origins=origins)


@pytest.mark.parametrize("origins", [(1, 2, 3), ("TH", None, "KR"), ("TH", True, "KR"), ("TH", "", "KR")])
def test_item_refuses_an_origin_that_is_no_culture(origins: tuple[Any, ...]) -> None:
    with pytest.raises(DataError, match="origins"):
        an_item(origins=origins)


def test_item_fault_names_the_item() -> None:
    with pytest.raises(DataError, match="item 'kr-77'"):
        an_item(id="kr-77", best=5)


@pytest.mark.parametrize("name", ["prompt", "group", "id"])
def test_item_refuses_text_that_no_file_can_hold(name: str) -> None:
    with pytest.raises(DataError, match=name):
        an_item(**{name: "cut in the middle of an emoji \ud83d"})


def test_item_holds_tuples_whatever_it_was_given() -> None:
    item = an_item(responses=["a", "b"], origins=["TH", "JP"])
    assert item.responses == ("a", "b")
    assert item.origins == ("TH", "JP")
    assert hash(item) == hash(an_item(responses=("a", "b"), origins=("TH", "JP")))


def test_item_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        an_item().best = 0  # type: ignore[misc]


def test_replacing_a_field_validates_again() -> None:
    with pytest.raises(DataError, match="best must be an index"):
        dataclasses.replace(an_item(), responses=("a", "b"), best=2)


def test_there_is_a_label_for_each_of_eight_responses() -> None:
    assert LABELS == "ABCDEFGH"


def test_every_error_is_caught_by_the_base_and_by_its_builtin_kin() -> None:
    for error, kin in ((DataError, ValueError), (ConfigError, ValueError), (PreflightError, RuntimeError)):
        assert issubclass(error, ThinkAsLocalsError)
        assert issubclass(error, kin)


def test_total_is_the_weighted_sum_of_the_parts_asked_for() -> None:
    breakdown = RewardBreakdown({"correctness": -1.0, "structure": 0.5})
    assert breakdown.total({"correctness": 2.0, "structure": 0.2}) == pytest.approx(-1.9)
    assert breakdown.total({"structure": 3.0}) == pytest.approx(1.5)
    assert breakdown.total({}) == 0.0


def test_total_names_the_part_that_was_not_computed_and_those_that_were() -> None:
    with pytest.raises(KeyError, match=r"'gain'.*correctness, structure"):
        RewardBreakdown({"structure": 1.0, "correctness": 1.0}).total({"gain": 1.0, "structure": 1.0})


def test_reward_parts_cannot_be_changed_from_within_or_without() -> None:
    given = {"correctness": 1.0}
    breakdown = RewardBreakdown(given)
    given["correctness"] = 9.0
    assert breakdown.parts["correctness"] == 1.0
    with pytest.raises(TypeError):
        breakdown.parts["correctness"] = 9.0  # type: ignore[index]

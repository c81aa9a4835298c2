"""What is suspicious about an item."""

from __future__ import annotations

import dataclasses

import pytest

from think_as_locals.data.checks import examine
from think_as_locals.data.outcomes import Outcome
from think_as_locals.data.rows import Row
from think_as_locals.types import Item

ROW = Row("rows.jsonl", 7, {}, "{}")


def faults(item: Item, **changes: object) -> list[tuple[str, str]]:
    (outcome,) = examine([Outcome(ROW, (dataclasses.replace(item, **changes),))])  # type: ignore[arg-type]
    assert len(outcome.items) == 1
    return [(str(fault.defect), fault.detail) for fault in outcome.faults]


def test_a_sound_item_stays_as_it_is(item: Item) -> None:
    outcome = Outcome(ROW, (item,))
    assert list(examine([outcome])) == [outcome]


@pytest.mark.parametrize(
    "text",
    [
        "Palms together.assistant\n\nAnd a smile.",
        "ไหว้ครับassistant\n\nยิ้มด้วย",
        "合掌。assistant\n\n微笑。",
        "Palms together.\nassistant\n\nAnd a smile.",
        "assistant\n\nPalms together.",
        "Palms together.user\n\nAnd then?",
        "Palms together.<|im_end|>",
        "Palms<|start_header_id|>assistant<|end_header_id|>",
        "Palms together.<end_of_turn>",
        "[/INST] Palms together.",
    ],
)
def test_a_response_that_runs_on_into_another_turn_is_named(item: Item, text: str) -> None:
    found = dict(faults(item, responses=("With a firm handshake.", text), best=1, origins=()))
    assert found["run_on_turn"].startswith("the best response goes on behind ")


@pytest.mark.parametrize(
    "text",
    [
        "I am an AI assistant\n\nHere is what I know.",
        "# assistant\n\nA heading.",
        "- user\n\n- guest",
        "Ask the shop assistant\n\nor a friend.",
        "The assistant bows.",
        "if a <| b |> c then d",
    ],
)
def test_what_only_looks_like_another_turn_is_not_named(item: Item, text: str) -> None:
    assert faults(item, responses=("With a firm handshake.", text), best=1, origins=()) == []


@pytest.mark.parametrize("text", ["\u200b", "\ufeff\u202e\u2066", "\x00", "\u3164 \u2800"])
def test_a_text_in_which_nothing_can_be_seen_is_named(item: Item, text: str) -> None:
    said = faults(item, responses=(text, *item.responses[1:]), best=0)
    assert said == [("invisible_text", f"the best response is {text!r}")]


@pytest.mark.parametrize("text", ["⠇⠀⠃", "👩\u200d👩", "می\u200cخواهم", "·"])
def test_a_text_with_something_to_be_seen_is_not(item: Item, text: str) -> None:
    assert faults(item, responses=(text, *item.responses[1:]), best=0) == []


def test_a_text_in_another_language_is_named_with_both(item: Item) -> None:
    german = "Man verbeugt sich tief und sagt dabei ein paar freundliche Worte."
    found = faults(item, responses=(german, *item.responses[1:]))
    assert found == [("wrong_language", "the response 0 is in 'de', the row says 'en'")]
    assert [defect for defect, _ in faults(item, prompt=german)] == ["wrong_language"]


def test_a_text_that_several_items_of_a_row_share_is_named_once(item: Item) -> None:
    german = "Man verbeugt sich tief und sagt dabei ein paar freundliche Worte."
    items = [dataclasses.replace(item, id=str(i), responses=(str(i), german), best=0, origins=()) for i in range(3)]
    (outcome,) = examine([Outcome(ROW, tuple(items))])
    assert [str(fault.defect) for fault in outcome.faults] == ["wrong_language"]

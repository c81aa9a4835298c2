"""What became of rows: repeats are named, errors stop training, nothing of a row is dropped unnoticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from think_as_locals.data.rows import Defect, Fault, Outcome, Row, mark_repeats, valid_items
from think_as_locals.types import DataError, Item

ERROR, WARNING, UNUSED = Fault(Defect.EMPTY_PROMPT, "e"), Fault(Defect.RUN_ON_TURN, "w"), Fault(Defect.TIE, "t")


def outcome(number: int, *items: Item) -> Outcome:
    return Outcome(Row("rows.jsonl", number, {}, "{}"), items)


def defects(*outcomes: Outcome) -> list[list[str]]:
    return [[str(fault.defect) for fault in marked.faults] for marked in mark_repeats(outcomes)]


def test_a_row_with_the_id_of_an_earlier_one_is_no_item(item: Item) -> None:
    other = replace(item, prompt="Another question?")
    first, second = mark_repeats([outcome(1, item), outcome(2, other)])
    assert (first.items, second.items) == ((item,), ())
    assert second.faults[0].detail == "id 'greeting-th' is already in line 1 of rows.jsonl"


def test_a_row_with_the_prompt_and_responses_of_an_earlier_one_is_a_duplicate(item: Item) -> None:
    turned = replace(item, id="turned", responses=item.responses[::-1], best=2, origins=())
    first, second = mark_repeats([outcome(1, item), outcome(2, turned)])
    assert not first.faults
    assert [str(fault.defect) for fault in second.faults] == ["duplicate"]
    assert second.items == (turned,)


def test_the_members_of_a_flip_set_are_no_duplicates(item: Item) -> None:
    flips = [replace(item, id=culture, culture=culture, best=i) for i, culture in enumerate(item.origins)]
    same_question = [replace(item, id="other best", best=0), replace(item, id="other prompt", prompt="?")]
    assert not any(defects(*(outcome(i, flip) for i, flip in enumerate([*flips, *same_question]))))


def test_the_items_of_one_row_are_no_repeats_of_one_another(item: Item) -> None:
    assert defects(outcome(1, item, replace(item, id="b")), outcome(2)) == [[], []]


def test_a_warning_keeps_the_items_and_an_error_does_not(item: Item) -> None:
    assert outcome(1, item).with_faults(WARNING).items == (item,)
    for fault in (ERROR, UNUSED):
        assert outcome(1, item).with_faults(WARNING, fault).items == ()
        assert not outcome(1, item).with_faults(fault).imported


def test_training_stops_at_the_first_row_with_an_error_and_says_all_of_them(item: Item) -> None:
    sound = [outcome(1, item).with_faults(WARNING), outcome(2).with_faults(UNUSED)]
    assert list(valid_items(sound)) == [item]
    bad = outcome(3).with_faults(ERROR, WARNING, Fault(Defect.BAD_BEST, "b"))
    with pytest.raises(DataError, match=r"^rows\.jsonl:3: e; b$"):
        list(valid_items([*sound, bad]))

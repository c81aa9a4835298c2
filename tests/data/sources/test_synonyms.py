"""Synonyms of short answers: which two answers can both be right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.data.sources.blend import Synonyms

EMPTY_SYNONYMS = Synonyms([])


def overlap(a: str, b: str, synonyms: Synonyms = EMPTY_SYNONYMS) -> bool:
    return bool(synonyms.marks(a) & synonyms.marks(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("television", "watching TV"),
        ("football", "play soccer"),
        ("trousers", "black pants"),
        ("teacher", "teaching"),
        ("runners", "to run"),
        ("bus", "by buses"),
        ("Valentine’s", "valentine's day"),
        ("nezāmi", "Nezami"),
        ("League of Legends", "lol"),
        ("on foot", "walking"),
        ("fruit", "an apple"),
        ("fried sardines", "fish"),
        ("rice", "fried rice"),
    ],
)
def test_compatible_answers_share_a_mark(a: str, b: str) -> None:
    assert overlap(a, b)
    assert overlap(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("apple", "banana"),  # kinds of one thing
        ("crisps", "french fries"),  # a synonym of a synonym
        ("fish market", "sardines"),  # only all of the general answer is general
        ("tea", "coffee"),
        ("basketball", "baseball"),
        ("couscous", "curry"),  # begin alike
    ],
)
def test_incompatible_answers_share_no_mark(a: str, b: str) -> None:
    assert not overlap(a, b)
    assert not overlap(b, a)


def test_joint_spellings_are_synonyms_unless_as_often_separate() -> None:
    one, two = [["gruel", "Mush"], ["toast"]], [["gruel"], ["mush", "pap"]]
    for answered, expected in (([], False), ([one], True), ([one, two], False), ([one, two, one], True)):
        assert overlap("the mush", "gruel", Synonyms(answered)) == expected
    learned = Synonyms([one])
    assert not overlap("toast", "gruel", learned)
    assert not overlap("mush", "gruel with milk", learned)  # learned of all of it, not of a part


texts = st.text(min_size=1, max_size=30)


@given(st.lists(st.lists(st.lists(texts, max_size=3), max_size=3), max_size=3), texts)
def test_marks_do_not_depend_on_the_order_of_annotations(answered: list[list[list[str]]], text: str) -> None:
    assert Synonyms(answered).marks(text) == Synonyms(reversed(answered)).marks(text)

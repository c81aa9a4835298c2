"""What one scores without judging."""

from __future__ import annotations

from typing import Any

import pytest

from think_as_locals.evaluation.baselines import TRAITS, label_match, longest, shortest, trait_scores
from think_as_locals.types import Item


def an_item(responses: tuple[str, ...], best: int = 0, **changes: Any) -> Item:
    fields: dict[str, Any] = {"id": "1", "prompt": "?", "culture": "JP", "language": "en", "domain": "d", "group": "g"}
    return Item(responses=responses, best=best, source="mine", **fields | changes)


def test_there_are_three_traits() -> None:
    assert set(TRAITS) == {"longest", "shortest", "label_match"}


@pytest.mark.parametrize(("best", "long", "short"), [(0, 0.0, 1.0), (1, 0.0, 0.0), (2, 1.0, 0.0)])
def test_preferring_the_longest_or_the_shortest_is_right_where_the_best_is_that(
    best: int, long: float, short: float
) -> None:
    items = [an_item(("a", "bb", "ccc"), best)]
    assert trait_scores(items, longest) == [long]
    assert trait_scores(items, shortest) == [short]


def test_a_tie_of_k_is_worth_one_in_k() -> None:
    assert trait_scores([an_item(("aa", "bb", "c"), 0)], longest) == [0.5]
    assert trait_scores([an_item(("aa", "bb", "c"), 2)], longest) == [0.0]
    assert trait_scores([an_item(("aa", "bb", "cc", "d"), 1)], longest) == pytest.approx([1 / 3])
    assert trait_scores([an_item(("aa", "bb"), i) for i in (0, 1)], shortest) == [0.5, 0.5]


def test_length_is_counted_in_characters_not_bytes() -> None:
    assert trait_scores([an_item(("ご飯と味噌汁", "toast and jam"), 1)], longest) == [1.0]


def test_the_order_of_responses_does_not_matter() -> None:
    responses = ("bbb", "a", "cc", "dddd")
    for best, text in enumerate(responses):
        moved = tuple(reversed(responses))
        for trait in TRAITS.values():
            there = trait_scores([an_item(moved, moved.index(text))], trait)
            assert there == trait_scores([an_item(responses, best)], trait)


@pytest.mark.parametrize(
    ("culture", "language", "response"),
    [
        ("JP", "en", "What people in japan do."),
        ("JP", "ja", "日本では朝にご飯を食べる。"),
        ("JP", "ja", "As they do in Japan."),
        ("DE", "de", "Wie in DEUTSCHLAND üblich."),
        ("US", "en", "In the United States they do."),
        ("MX", "es", "Lo normal en México."),
        ("CN", "zh", "在中国常见。"),
        ("BR", "pt-BR", "É comum no Brasil."),
    ],
)
def test_a_response_that_names_the_culture_in_english_or_the_items_language_is_preferred(
    culture: str, language: str, response: str
) -> None:
    item = an_item(("Something else.", response, "Another thing."), 1, culture=culture, language=language)
    assert [label_match(item, text) for text in item.responses] == [0.0, 1.0, 0.0]
    assert trait_scores([item], label_match) == [1.0]


def test_naming_another_culture_is_no_match() -> None:
    item = an_item(("As in Japan.", "As in Spain."), 1, culture="ES")
    assert trait_scores([item], label_match) == [1.0]
    assert trait_scores([an_item(("As in Japan.", "As in Spain."), 1, culture="JP")], label_match) == [0.0]


@pytest.mark.parametrize("responses", [("x", "yy", "zzz", "w"), ("x", "y")])
def test_where_no_response_or_every_one_names_the_culture_it_is_chance(responses: tuple[str, ...]) -> None:
    assert trait_scores([an_item(responses, 1)], label_match) == [1 / len(responses)]
    named = tuple(f"{response} in Japan" for response in responses)
    assert trait_scores([an_item(named, 1)], label_match) == [1 / len(responses)]


def test_an_item_without_a_culture_is_chance() -> None:
    assert trait_scores([an_item(("None", "none at all"), 0, culture=None)], label_match) == [0.5]


@pytest.mark.parametrize("language", ["xx", "tlh", "no-such-language", "q" * 50, "-"])
def test_a_language_or_culture_that_nobody_knows_is_no_error(language: str) -> None:
    item = an_item(("As in Atlantis.", "Elsewhere."), 0, culture="Atlantis", language=language)
    assert trait_scores([item], label_match) == [1.0]


def test_no_items_have_no_scores() -> None:
    assert trait_scores([], longest) == []

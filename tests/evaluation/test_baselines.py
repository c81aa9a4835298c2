"""What one scores without judging."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from items import make_item

from think_as_locals.data import flip_sets
from think_as_locals.evaluation.baselines import (
    CREDITS,
    TRAITS,
    baseline_credits,
    chance,
    label_match,
    majority_answer,
    tfidf,
    trait_scores,
)
from think_as_locals.types import Item


def an_item(responses: tuple[str, ...], best: int = 0, **changes: Any) -> Item:
    return make_item(responses=responses, best=best, **{"culture": "JP"} | changes)


def test_there_are_three_traits() -> None:
    assert set(TRAITS) == {"longest", "shortest", "label_match"}


@pytest.mark.parametrize(("best", "long", "short"), [(0, 0.0, 1.0), (1, 0.0, 0.0), (2, 1.0, 0.0)])
def test_preferring_the_longest_or_the_shortest_is_right_where_the_best_is_that(
    best: int, long: float, short: float
) -> None:
    items = [an_item(("a", "bb", "ccc"), best)]
    assert trait_scores(items, TRAITS["longest"]) == [long]
    assert trait_scores(items, TRAITS["shortest"]) == [short]


def test_a_tie_of_k_is_worth_one_in_k() -> None:
    assert trait_scores([an_item(("aa", "bb", "c"), 0)], TRAITS["longest"]) == [0.5]
    assert trait_scores([an_item(("aa", "bb", "c"), 2)], TRAITS["longest"]) == [0.0]
    assert trait_scores([an_item(("aa", "bb", "cc", "d"), 1)], TRAITS["longest"]) == pytest.approx([1 / 3])
    assert trait_scores([an_item(("aa", "bb"), i) for i in (0, 1)], TRAITS["shortest"]) == [0.5, 0.5]


def test_length_is_counted_in_characters_not_bytes() -> None:
    assert trait_scores([an_item(("ご飯と味噌汁", "toast and jam"), 1)], TRAITS["longest"]) == [1.0]


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


@pytest.mark.parametrize(
    ("culture", "language", "response", "named"),
    [
        ("OM", "en", "A woman would.", 0.0),
        ("CU", "en", "The egg incubates.", 0.0),
        ("IR", "es", "En Tirana.", 0.0),
        ("EG", "en", "An Egyptian custom.", 1.0),
        ("CU", "es", "¡Cuba!", 1.0),
        ("IL", "he", "בישראל", 1.0),
        ("JP", "th", "ในญี่ปุ่น", 1.0),
        ("JP", "zh", "在Japan见到", 1.0),
    ],
)
def test_a_name_inside_a_word_is_none(culture: str, language: str, response: str, named: float) -> None:
    item = an_item((response, "Another thing."), 0, culture=culture, language=language)
    assert label_match(item, response) == named


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
    assert trait_scores([], TRAITS["longest"]) == []


# --- what needs other items: the majority answer, TF-IDF on the response alone ---

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def nonsense(rng: random.Random, words: int = 6) -> str:
    return " ".join("".join(rng.choices(SYLLABLES, k=3)) for _ in range(words))


def many(mark: str, groups: int = 30, per_group: int = 4, size: int = 4, seed: int = 0) -> list[Item]:
    """Best-of-4 items of nonsense; every best response says `mark`, `{group}` in it being three words of its group."""
    rng, made = random.Random(seed), []
    for group in range(groups):
        secret = nonsense(rng, words=3)
        for i in range(per_group):
            best = rng.randrange(size)
            responses = [nonsense(rng, words=9) for _ in range(size)]
            if mark:  # in place of as many words: no response is longer than another
                responses[best] = f"{nonsense(rng)} {mark.format(group=secret)}"
            made.append(an_item(tuple(responses), best, id=f"{group}/{i}", group=f"g{group}"))
    return made


def flips(groups: int = 6) -> list[Item]:
    """Whole flip sets of four of six cultures, whose answers differ in length and style."""
    cultures = ("CN", "DE", "EG", "JP", "TH", "US")
    rng, made = random.Random(1), []
    for group in range(groups):
        answers = {culture: nonsense(rng, words=2 + i) for i, culture in enumerate(cultures)}
        for four in combinations(cultures, 4):
            for culture in four:
                order = list(four)
                rng.shuffle(order)  # the order in a data set may differ from item to item
                made.append(
                    an_item(
                        tuple(answers[c] for c in order),
                        order.index(culture),
                        id=f"{group}/{''.join(four)}/{culture}",
                        culture=culture,
                        group=f"g{group}",
                    )
                )
    return made


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def test_baselines_go_by_name() -> None:
    assert list(CREDITS) == ["chance", "longest", "shortest", "label_match", "majority_answer", "tfidf"]


def test_chance_is_one_in_n() -> None:
    assert chance([an_item(("a", "b")), an_item(("a", "b", "c", "d"))]) == [0.5, 0.25]


def test_tfidf_finds_what_right_answers_share_across_questions() -> None:
    assert mean(tfidf(many("bagofe dikuma sotane"))) > 0.95


@pytest.mark.parametrize("letters", ["กขคงจฉชซญดตถ", "水火木金土日月山川田石竹", "あいうえおかきくけこさし"])
def test_tfidf_reads_scripts_without_spaces(letters: str) -> None:
    rng, mark = random.Random(2), letters[-1]
    items = []
    for i in range(80):
        texts = ["".join(rng.choices(letters[:-1], k=12)) for _ in range(2)]
        items.append(an_item((texts[0] + mark, texts[1]), 0, id=str(i), group=str(i)))
    assert mean(tfidf(items)) > 0.95


def test_tfidf_never_sees_the_question_group_it_is_tested_on() -> None:
    # Every group has a mark of its own, on all of its right answers: who has seen the group is always right.
    items = many("{group}", groups=40, per_group=5)
    assert mean(tfidf([an_item(i.responses, i.best, id=i.id, group=i.id) for i in items])) > 0.9
    assert abs(mean(tfidf(items)) - 0.25) < 0.1


def test_tfidf_knows_neither_the_question_nor_the_culture() -> None:
    items = many("bagofe dikuma sotane", groups=10)
    others = [an_item(i.responses, i.best, id=i.id, group=i.group, prompt="another", culture="TH") for i in items]
    assert tfidf(items) == tfidf(others)


def test_the_order_of_items_and_of_responses_does_not_matter_to_tfidf() -> None:
    items = many("bagofe dikuma sotane", groups=8) + many("", groups=8, seed=3)
    items = [an_item(i.responses, i.best, id=f"{n}", group=i.group) for n, i in enumerate(items)]
    assert tfidf(items[::-1]) == tfidf(items)[::-1]
    turned = [an_item(i.responses[::-1], 3 - i.best, id=i.id, group=i.group) for i in items]
    assert tfidf(turned) == tfidf(items)


@pytest.mark.parametrize("items", [[], many("x", groups=1)], ids=["none", "one group"])
def test_with_nothing_to_learn_from_tfidf_is_chance(items: list[Item]) -> None:
    assert tfidf(items) == chance(items)


def test_the_majority_answer_is_that_of_the_other_groups() -> None:
    def yes_no(number: int, best: int) -> Item:
        return an_item(("Yes", "no "), best, id=str(number), group=str(number))

    items = [yes_no(i, 0) for i in range(3)] + [an_item(("No", "YES"), 1, id="x", group="x"), yes_no(9, 1)]
    assert majority_answer(items) == [1, 1, 1, 1, 0]
    # Alone, or with answers that no other group has, it knows nothing.
    assert majority_answer([yes_no(1, 0), an_item(("Yes", "No"), 0, id="2", group="1")]) == [0.5, 0.5]
    assert majority_answer(many("", groups=3)) == [0.25] * 12


@pytest.mark.parametrize("name", ["chance", "longest", "shortest", "majority_answer", "tfidf"])
def test_what_is_blind_to_the_culture_scores_exactly_one_in_n_on_whole_flip_sets(name: str) -> None:
    items = flips()
    assert len(flip_sets(items)) == len(items) / 4
    worth = baseline_credits(items)[name]
    assert sum(worth[item.id] for item in items) == len(items) / 4
    for members in flip_sets(items):
        assert sum(worth[item.id] for item in members) == pytest.approx(1)


def test_every_baseline_gives_every_item_a_credit() -> None:
    items = many("bagofe dikuma sotane", groups=6)
    worth = baseline_credits(items)
    assert set(worth) == set(CREDITS)
    for name, credit in CREDITS.items():
        assert worth[name] == dict(zip([i.id for i in items], credit(items), strict=True)), name
        assert all(0 <= value <= 1 for value in worth[name].values())

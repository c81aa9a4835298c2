"""Baselines that score without judging: chance, length, label match, majority answer and TF-IDF."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import mean
from typing import Any

import pytest
from items import make_item

from think_as_locals.data import flip_sets
from think_as_locals.evaluation import baselines
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
from think_as_locals.types import Item, reorder_responses


def an_item(responses: tuple[str, ...], best: int = 0, **changes: Any) -> Item:
    return make_item(responses=responses, best=best, **{"culture": "JP"} | changes)


@pytest.mark.parametrize(
    ("responses", "best", "long", "short"),
    [
        *((("a", "bb", "ccc"), 0, 0.0, 1.0), (("a", "bb", "ccc"), 1, 0.0, 0.0), (("a", "bb", "ccc"), 2, 1.0, 0.0)),
        *((("aa", "bb", "c"), 0, 0.5, 0.0), (("aa", "bb", "c"), 2, 0.0, 1.0)),  # a tie of k is worth 1/k
        (("aa", "bb", "cc", "d"), 1, 1 / 3, 0.0),
        (("ご飯と味噌汁", "toast and jam"), 1, 1.0, 0.0),  # in characters, not bytes
    ],
)
def test_length_traits_score_ties_fractionally(
    responses: tuple[str, ...], best: int, long: float, short: float
) -> None:
    for item in (an_item(responses, best), an_item(responses[::-1], len(responses) - 1 - best)):
        assert trait_scores([item], TRAITS["longest"]) == [pytest.approx(long)]
        assert trait_scores([item], TRAITS["shortest"]) == [short]


@pytest.mark.parametrize(
    ("culture", "language", "response", "named"),
    [("JP", "ja", "日本では朝にご飯を食べる。", True), ("CU", "en", "The egg incubates.", False)],
)
def test_label_match_finds_the_culture_name_in_a_response(
    culture: str, language: str, response: str, named: bool
) -> None:
    item = an_item(("Something else.", response, "Another thing."), 1, culture=culture, language=language)
    assert [label_match(item, text) for text in item.responses] == [0.0, float(named), 0.0]
    assert trait_scores([item], label_match) == [1.0 if named else 1 / 3]


@pytest.mark.parametrize(
    ("responses", "changes", "credit"),
    [
        (("x", "yy", "zzz", "w"), {}, 1 / 4),
        (("x in Japan", "y in Japan"), {}, 1 / 2),
        (("None", "none at all"), {"culture": None}, 1 / 2),
        *(
            (("As in Atlantis.", "Elsewhere."), {"culture": "Atlantis", "language": language}, 1)
            for language in ("tlh", "no-such-language", "-")
        ),
    ],
)
def test_label_match_is_chance_without_a_difference_and_accepts_unknown_names(
    responses: tuple[str, ...], changes: dict[str, Any], credit: float
) -> None:
    assert trait_scores([an_item(responses, **changes)], label_match) == [credit]


# --- what needs other items: the majority answer, TF-IDF on the response alone ---

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def nonsense(rng: random.Random, words: int = 6) -> str:
    return " ".join("".join(rng.choices(SYLLABLES, k=3)) for _ in range(words))


def nonsense_items(mark: str, groups: int = 30, per_group: int = 4, size: int = 4, seed: int = 0) -> list[Item]:
    """Best-of-4 items of nonsense; every best response says `mark`, `{group}` in it being three words of its group."""
    rng, made = random.Random(seed), []
    for group in range(groups):
        secret = nonsense(rng, words=3)
        for i in range(per_group):
            best = rng.randrange(size)
            responses = [nonsense(rng, words=9) for _ in range(size)]
            if mark:  # replaces the same number of words: no response is longer than another
                responses[best] = f"{nonsense(rng)} {mark.format(group=secret)}"
            made.append(an_item(tuple(responses), best, id=f"{group}/{i}", group=f"g{group}"))
    return made


def nonsense_flip_sets(groups: int = 6) -> list[Item]:
    """Whole flip sets of four of six cultures, whose answers differ in length and style."""
    cultures = ("CN", "DE", "EG", "JP", "TH", "US")
    rng, made = random.Random(1), []
    for group in range(groups):
        answers = {culture: nonsense(rng, words=2 + i) for i, culture in enumerate(cultures)}
        for four in combinations(cultures, 4):
            for culture in four:
                order = rng.sample(four, 4)  # the order in a data set may differ from item to item
                known = {"id": f"{group}/{''.join(four)}/{culture}", "culture": culture, "group": f"g{group}"}
                made.append(an_item(tuple(answers[c] for c in order), order.index(culture), **known))
    return made


def test_every_baseline_credits_every_item() -> None:
    assert chance([an_item(("a", "b")), an_item(("a", "b", "c", "d"))]) == [0.5, 0.25]
    items = nonsense_items("bagofe dikuma sotane", groups=6)
    worth = baseline_credits(tuple(items))
    assert list(worth) == ["chance", "longest", "shortest", "label_match", "majority_answer", "tfidf"]
    for name, credit in CREDITS.items():
        assert worth[name].tolist() == credit(items), name
    turned = baseline_credits(tuple(reorder_responses(item, (2, 0, 3, 1)) for item in items))
    assert {name: column.tolist() for name, column in turned.items()} == {n: c.tolist() for n, c in worth.items()}


def test_tfidf_finds_words_shared_by_best_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mean(tfidf(nonsense_items("bagofe dikuma sotane"))) > 0.95
    items = nonsense_items("bagofe dikuma sotane")
    monkeypatch.setattr(baselines, "_MAX_FITTED", sum(len(item.responses) for item in items) // 3)
    assert mean(tfidf(items)) > 0.9


@pytest.mark.parametrize("letters", ["กขคงจฉชซญดตถ", "水火木金土日月山川田石竹"])
def test_tfidf_reads_scripts_without_spaces(letters: str) -> None:
    rng, mark, items = random.Random(2), letters[-1], []
    for i in range(80):
        texts = ["".join(rng.choices(letters[:-1], k=12)) for _ in range(2)]
        items.append(an_item((texts[0] + mark, texts[1]), 0, id=str(i), group=str(i)))
    assert mean(tfidf(items)) > 0.95


def test_tfidf_is_not_trained_on_the_tested_group() -> None:
    # Every group has a mark of its own, on all of its right answers: who has seen the group is always right.
    items = nonsense_items("{group}", groups=40, per_group=5)
    assert mean(tfidf([an_item(i.responses, i.best, id=i.id, group=i.id) for i in items])) > 0.9
    assert abs(mean(tfidf(items)) - 0.25) < 0.1


def test_tfidf_depends_on_responses_alone_in_any_order() -> None:
    items = nonsense_items("bagofe dikuma sotane", groups=10)
    others = [an_item(i.responses, i.best, id=i.id, group=i.group, prompt="another", culture="TH") for i in items]
    assert tfidf(items) == tfidf(others)
    items = nonsense_items("bagofe dikuma sotane", groups=8) + nonsense_items("", groups=8, seed=3)
    items = [an_item(i.responses, i.best, id=f"{n}", group=i.group) for n, i in enumerate(items)]
    assert tfidf(items[::-1]) == tfidf(items)[::-1]


@pytest.mark.parametrize("items", [[], nonsense_items("x", groups=1)], ids=["none", "one group"])
def test_tfidf_is_chance_without_training_groups(items: list[Item]) -> None:
    assert tfidf(items) == chance(items)


def test_majority_answer_uses_only_other_groups() -> None:
    def yes_no(number: int, best: int) -> Item:
        return an_item(("Yes", "no "), best, id=str(number), group=str(number))

    items = [yes_no(i, 0) for i in range(3)] + [an_item(("No", "YES"), 1, id="x", group="x"), yes_no(9, 1)]
    assert majority_answer(items) == [1, 1, 1, 1, 0]
    # Alone, or with answers that no other group has, it knows nothing.
    assert majority_answer([yes_no(1, 0), an_item(("Yes", "No"), 0, id="2", group="1")]) == [0.5, 0.5]
    assert majority_answer(nonsense_items("", groups=3)) == [0.25] * 12


def test_culture_blind_baselines_score_chance_on_complete_flip_sets() -> None:
    items = nonsense_flip_sets()
    assert len(flip_sets(items)) == len(items) / 4
    places = {item.id: place for place, item in enumerate(items)}
    for name, column in baseline_credits(tuple(items)).items():
        if name != "label_match":
            for members in flip_sets(items):
                assert sum(column[places[item.id]] for item in members) == pytest.approx(1), name


def test_baseline_credits_are_cached() -> None:
    items = tuple(an_item((f"rice {i}", "soup"), id=f"q{i}", group=f"g{i // 2}") for i in range(12))
    sets = items, items[:4], items[4:8]  # the sets of a training, at every checkpoint
    found = [baseline_credits(some) for some in sets]
    misses = baseline_credits.cache_info().misses
    assert all(baseline_credits(some) is each for some, each in zip(sets, found, strict=True))
    assert baseline_credits.cache_info().misses == misses

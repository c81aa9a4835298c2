"""Culture cards and opinion cards: their texts, their items, and how trivial baselines score on them."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from data.sections import data_section
from scipy.special import expit

from think_as_locals.data import Splits, flip_sets, load
from think_as_locals.data.cards import (
    OWN,
    OWN_SHARE,
    PAIRS,
    PEOPLE,
    POPULARITY,
    cards,
    cultures,
    read_culture_cards,
    read_opinion_cards,
)
from think_as_locals.data.splits import flip_set_combinations
from think_as_locals.evaluation.baselines import TRAITS, trait_scores
from think_as_locals.judging import shuffle_responses
from think_as_locals.types import DataError, Item

# fmt: off
CULTURES = {
    "EG": "ar", "CN": "zh", "US": "en", "DE": "de", "JP": "ja", "KR": "ko", "RU": "ru", "ES": "es", "TH": "th",
    "VN": "vi",
}
# fmt: on
LANGUAGES = set(CULTURES.values())
NAMES = re.compile(
    r"\b(egypt|chin(a|ese)\b|america|united states|u\.s\.|usa\b|german|japan|korea|russia|soviet|spain|spanish|"
    r"spaniard|thai|siam|vietnam|viet nam)",
    re.IGNORECASE,
)
CARDS = cards()
CARD_OF = {card.group: card for card in CARDS}
# A culture's own language goes with the group split alone: paired anew, its facts could be known by heart.
SPLIT_CHOICES = [
    *((languages, "group") for languages in (("en",), ("own",), ("en", "own"))),
    *((languages, "pairing") for languages in (("en",), ("en", "th"))),
]


# --- the cards ---


def test_cards_have_a_question_and_ten_facts_in_ten_languages() -> None:
    assert {culture: about["language"] for culture, about in cultures().items()} == CULTURES
    assert Counter(card.domain for card in CARDS) == dict.fromkeys(("commonsense", "value", "safety", "linguistic"), 25)
    assert len(CARD_OF) == 100
    assert [card.name for card in CARDS if not re.fullmatch(r"[a-z]+/[a-z]+(_[a-z]+)*", card.name)] == []
    assert [card.name for card in CARDS if set(card.facts) != set(CULTURES)] == []
    texts = [card.question for card in CARDS] + [fact for card in CARDS for fact in card.facts.values()]
    assert [text for text in texts if set(text) != LANGUAGES] == []
    assert [culture for culture, about in cultures().items() if set(about["place"]) != LANGUAGES] == []


def test_card_texts_are_distinct_and_safe_in_prompts() -> None:
    breaking = re.compile(r"[\n\r\t<>|$\u200b-\u200f\u2060\ufeff]|^\s|\s$|^$")
    for language in LANGUAGES:
        questions = [card.question[language] for card in CARDS]
        assert len(set(questions)) == 100
        assert [text for text in questions if breaking.search(text)] == []
        assert [text for text in questions if re.findall(r"\{.*?\}", text) != ["{place}"]] == []
        for card in CARDS:
            facts = [fact[language] for fact in card.facts.values()]
            assert len({text.casefold() for text in facts}) == len(facts), (card.name, language)
            assert [text for text in facts if "{" in text or breaking.search(text)] == []
            assert language != "en" or [text for text in facts if NAMES.search(text)] == []  # no culture is named


def test_facts_that_hold_elsewhere_leave_flip_sets_of_four() -> None:
    for card in CARDS:
        for culture, others in card.also.items():
            assert isinstance(others, list)
            assert others
            assert len(set(others)) == len(others)
            assert {culture, *others} <= set(card.facts)
            assert culture not in others, card.name
    left = {
        (card.group, culture)
        for card in CARDS
        for culture in set(card.facts).difference(*flip_set_combinations(tuple(card.facts), card.also, 4, None, "any"))
    }
    assert len(left) <= 20


# --- the items ---


def read(**changes: Any) -> list[Item]:
    seed = changes.pop("seed", 0)
    return list(read_culture_cards(data_section(**{"sets_per_group": 3} | changes), seed))


@cache
def splits(languages: tuple[str, ...], split: str) -> Splits:
    return load(data_section(languages=list(languages), split=split, sets_per_group=10))


def test_best_response_is_the_only_fact_valid_for_the_culture() -> None:
    groups = ["cold_remedy", "childrens_game", "work_custom"]  # where facts hold elsewhere too
    every = read(languages=["en", "own"], sets_per_group=None, groups=groups)
    for item in [*read(languages=["en", "ja", "own"], sets_per_group=1), *every]:
        card = CARD_OF[item.group]
        assert item.id.startswith(f"{card.name}/{item.culture}/")
        assert item.origins[item.best] == item.culture
        assert set(item.origins) - {item.culture} <= set(card.others(str(item.culture)))
        assert item.responses == tuple(card.facts[origin][item.language] for origin in item.origins)
        place = cultures()[str(item.culture)]["place"][item.language]
        assert item.prompt == card.question[item.language].replace("{place}", place)
        assert (item.domain, item.source) == (card.domain, "culture_cards")


def test_item_ids_are_unique_for_repeated_languages() -> None:
    for languages, expected in ((["en", "en"], {"en"}), (["own"], LANGUAGES), (["en", "own"], LANGUAGES)):
        items = read(languages=languages, sets_per_group=1)
        assert len({item.id for item in items}) == len(items)
        assert {item.language for item in items} == expected
        assert languages != ["own"] or {(item.culture, item.language) for item in items} == set(CULTURES.items())


@pytest.mark.parametrize(("size", "sets_per_group"), [(4, 10), (2, 1), (8, 1)])
def test_english_items_are_complete_flip_sets_balanced_by_culture(size: int, sets_per_group: int) -> None:
    items = read(num_responses=size, sets_per_group=sets_per_group)
    sets = flip_sets(items)
    assert sum(map(len, sets)) == len(items)
    for members in sets:
        assert len(members) == size
        assert sorted(str(item.culture) for item in members) == sorted(members[0].origins)
    counts = Counter(item.culture for item in items)
    assert set(counts) == set(CULTURES)
    assert sets_per_group == 1 or max(counts.values()) < 1.25 * min(counts.values())


def test_sets_per_group_samples_flip_sets_by_seed() -> None:
    groups = ["hot_drink", "table_taboo", "lucky_charm"]
    few, other = read(groups=groups, sets_per_group=2), read(groups=groups, sets_per_group=2, seed=1)
    assert Counter(item.group for item in few) == dict.fromkeys(groups, 8)
    every = {item.id for item in read(groups=groups, sets_per_group=None)}
    assert {item.id for item in few} < every
    assert {item.id for item in few} != {item.id for item in other} < every
    # The same in every process, each of which has a PYTHONHASHSEED of its own.
    ids = "".join(item.id for item in read(languages=["en", "own"], sets_per_group=1, seed=5))
    assert hashlib.sha256(ids.encode()).hexdigest()[:16] == "95fe83f0df837aa0"


def test_unknown_language_error_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"no language 'fr'.*known: ar, de, en, es, ja, ko, own, ru, th, vi"):
        read(languages=["fr"])


# --- splits, and what one scores on them without judging ---


@pytest.mark.parametrize(("languages", "split"), SPLIT_CHOICES)
def test_both_splits_have_whole_flip_sets_on_which_traits_and_position_score_at_chance(
    languages: tuple[str, ...], split: str
) -> None:
    both = splits(languages, split)
    for items in (both.test, both.train + both.test):
        assert len(items) > 700
        for name, trait in TRAITS.items():
            assert np.mean(trait_scores(items, trait)) == pytest.approx(0.25, abs=0.05), name
    positions = Counter(shuffle_responses(item).best for item in both.test)
    assert [positions[i] / len(both.test) for i in range(4)] == pytest.approx([0.25] * 4, abs=0.05)
    assert len(both.test) / len(both.train + both.test) == pytest.approx(0.2, abs=0.02)
    assert len({(item.culture, item.domain) for item in both.test}) == 40
    for side in (both.train, both.test) if "en" in languages else ():
        english = [item for item in side if item.language == "en"]
        sets = flip_sets(english)
        assert sum(map(len, sets)) == len(english) > 700
        assert len(set(Counter(item.best for members in sets for item in members).values())) == 1


# --- opinion cards ---

FEW_GROUPS = (
    *("everyday_breakfast", "street_snack", "greeting_gesture", "lucky_charm"),
    *("gift_taboo", "warned_about", "idiom_heavy_rain", "idiom_very_easy"),
)
GROUP_OF = {card.question["en"].replace("{place}", "where you live"): card.group for card in CARDS}


@cache
def opinions(groups: tuple[str, ...] | None = None, seed: int = 0) -> tuple[Item, ...]:
    return tuple(read_opinion_cards(data_section(groups=groups and list(groups)), seed))


def custom(item: Item, place: int) -> tuple[str, str]:
    return GROUP_OF[item.prompt], item.origins[place]


def test_opinion_cards_give_each_person_pairs_and_the_own_custom_share() -> None:
    items = opinions()
    assert Counter(item.culture for item in items) == dict.fromkeys(CULTURES, PEOPLE * PAIRS)
    assert set(Counter(item.group for item in items).values()) == {PAIRS}
    assert len({item.group for item in items}) == PEOPLE * len(CULTURES)
    assert len({item.id for item in items}) == len(items)
    for item in items:
        card = CARD_OF[GROUP_OF[item.prompt]]
        assert item.best == 0
        assert item.group.startswith(f"{item.culture}-")
        assert item.responses == tuple(card.facts[origin]["en"] for origin in item.origins)
        assert (item.domain, item.language, item.source) == (card.domain, "en", "opinion_cards")
        assert len(set(item.origins)) == 2
        assert set(item.origins) - {item.culture} <= set(card.others(str(item.culture)))
    assert np.mean([item.culture in item.origins for item in items]) == pytest.approx(OWN_SHARE, abs=0.02)


def test_opinion_prompts_name_no_country_and_groups_limit_them() -> None:
    places = {about["place"]["en"] for about in cultures().values()}
    prompts = {item.prompt for item in opinions()}
    assert prompts == set(GROUP_OF)
    assert [prompt for prompt in prompts if NAMES.search(prompt) or "{" in prompt] == []
    assert [prompt for prompt in prompts for place in places if place in prompt] == []
    assert {GROUP_OF[item.prompt] for item in opinions(FEW_GROUPS)} == set(FEW_GROUPS)


def agreement(one: Iterable[Item], other: Iterable[Item]) -> float:
    """The correlation between how often each custom is preferred to each other one."""
    counts = [Counter((custom(item, 0), custom(item, 1)) for item in items) for items in (one, other)]
    compared = set.intersection(*({tuple(sorted(pair)) for pair in count} for count in counts))
    shares = [[count[a, b] / (count[a, b] + count[b, a]) for count in counts] for a, b in compared]
    return float(np.corrcoef(np.array(shares).T)[0, 1])


def test_people_prefer_their_own_customs_and_agree_on_the_others() -> None:
    own = [item.origins[0] == item.culture for item in opinions() if item.culture in item.origins]
    ahead = np.random.default_rng(0).normal(OWN, math.sqrt(2) * POPULARITY, 10**5)
    assert np.mean(own) == pytest.approx(expit(ahead).mean(), abs=0.03)
    foreign = [item for item in opinions(FEW_GROUPS) if item.culture not in item.origins]
    sides = [[item for item in foreign if (item.culture in [*CULTURES][::2]) == side] for side in (True, False)]
    assert agreement(*sides) > 0.7


def test_seed_decides_which_customs_are_popular() -> None:
    groups = ("lucky_charm", "street_snack")
    assert opinions(groups, 3) == opinions.__wrapped__(groups, 3)
    first, other = opinions(FEW_GROUPS, 0), opinions(FEW_GROUPS, 1)
    assert [item.id for item in first] == [item.id for item in other]
    assert abs(agreement(first, other)) < 0.3

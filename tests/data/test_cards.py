"""Culture cards and opinion cards: their texts, their items, and what scores without judging."""

from __future__ import annotations

import hashlib
import math
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from data.sections import data_section
from numpy.typing import NDArray
from scipy.special import expit

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.compose import ASSETS
from think_as_locals.data import Splits, flip_sets, load
from think_as_locals.data import cards as culture_cards
from think_as_locals.data.cards import OWN, OWN_SHARE, PAIRS, PEOPLE, POPULARITY, cards, cultures
from think_as_locals.data.splits import flip_set_combinations, split_people
from think_as_locals.evaluation.baselines import TRAITS, trait_scores
from think_as_locals.judging import shuffle_responses
from think_as_locals.types import DataError, Item

LANGUAGES = {"ar", "zh", "en", "de", "ja", "ko", "ru", "es", "th", "vi"}
CULTURES = {
    "EG": "ar",
    "CN": "zh",
    "US": "en",
    "DE": "de",
    "JP": "ja",
    "KR": "ko",
    "RU": "ru",
    "ES": "es",
    "TH": "th",
    "VN": "vi",
}
NAMES = re.compile(
    r"\b(egypt|chin(a|ese)\b|america|united states|u\.s\.|usa\b|german|japan|korea|russia|soviet|spain|spanish|"
    r"spaniard|thai|siam|vietnam|viet nam)",
    re.IGNORECASE,
)
CARDS = culture_cards.cards()
LANGUAGE_CHOICES = [("en",), ("own",), ("en", "own")]
# A culture's own language goes with the group split alone: paired anew, its facts could be known by heart.
SPLIT_CHOICES = [
    *((languages, "group") for languages in LANGUAGE_CHOICES),
    (("en",), "pairing"),
    (("en", "th"), "pairing"),
]


def texts() -> Iterable[tuple[str, str]]:
    """Every text of every card, with the place it stands at."""
    for card in CARDS:
        for language, text in card.question.items():
            yield f"{card.domain}/{card.group} question {language}", text
        for culture, fact in card.facts.items():
            for language, text in fact.items():
                yield f"{card.domain}/{card.group}/{culture} {language}", text


# --- the cards ---


def test_there_are_25_question_groups_in_each_of_four_domains_and_their_names_are_unique() -> None:
    assert Counter(card.domain for card in CARDS) == dict.fromkeys(("commonsense", "value", "safety", "linguistic"), 25)
    assert len({card.group for card in CARDS}) == 100


def test_every_card_has_a_fact_for_every_culture_so_all_40_cells_are_filled() -> None:
    assert {culture: about["language"] for culture, about in culture_cards.cultures().items()} == CULTURES
    assert [card.group for card in CARDS if set(card.facts) != set(CULTURES)] == []
    assert len({(culture, card.domain) for card in CARDS for culture in card.facts}) == 40


def test_a_thousand_facts_have_distinct_ids_made_of_domain_group_and_culture() -> None:
    ids = [f"{card.domain}/{card.group}/{culture}" for card in CARDS for culture in card.facts]
    assert len(ids) == len(set(ids)) == 1000
    assert [i for i in ids if not re.fullmatch(r"[a-z]+/[a-z]+(_[a-z]+)*/[A-Z]{2}", i)] == []


def test_every_question_and_fact_and_place_is_there_in_ten_languages() -> None:
    assert [card.group for card in CARDS if set(card.question) != LANGUAGES] == []
    assert [(card.group, c) for card in CARDS for c, fact in card.facts.items() if set(fact) != LANGUAGES] == []
    assert [c for c, about in culture_cards.cultures().items() if set(about["place"]) != LANGUAGES] == []


def test_every_question_has_the_slot_for_the_place_exactly_once_and_no_other() -> None:
    slots = {place: re.findall(r"\{.*?\}", text) for place, text in texts() if "{" in text or " question " in place}
    assert {place: found for place, found in slots.items() if found != ["{place}"]} == {}


def test_no_english_fact_names_a_culture() -> None:
    facts = {f"{card.group}/{culture}": fact["en"] for card in CARDS for culture, fact in card.facts.items()}
    assert {place: text for place, text in facts.items() if NAMES.search(text)} == {}


def test_no_text_is_blank_padded_or_holds_what_would_break_a_prompt_or_a_rubric() -> None:
    assert {place: text for place, text in texts() if text != text.strip() or not text} == {}
    assert {place: text for place, text in texts() if re.search(r"[\n\r\t<>|$\u200b-\u200f\u2060\ufeff]", text)} == {}


def test_the_facts_of_a_card_are_distinct_in_every_language() -> None:
    same = {
        (card.group, language)
        for card in CARDS
        for language in LANGUAGES
        if len({fact[language].casefold() for fact in card.facts.values()}) < len(card.facts)
    }
    assert same == set()


def test_the_questions_are_distinct_in_every_language() -> None:
    for language in LANGUAGES:
        assert len({card.question[language] for card in CARDS}) == 100


def test_where_a_fact_holds_elsewhere_too_names_other_cultures_of_the_card_once() -> None:
    for card in CARDS:
        for culture, others in card.also.items():
            assert culture in card.facts
            assert isinstance(others, list)
            assert others
            assert len(set(others)) == len(others)
            assert set(others) <= set(card.facts) - {culture}, f"{card.group}/{culture}"


def test_nearly_every_fact_is_in_some_flip_set_of_four() -> None:
    left = {
        (card.group, culture)
        for card in CARDS
        for culture in set(card.facts).difference(*flip_set_combinations(tuple(card.facts), card.also, 4, None, "any"))
    }
    assert len(left) <= 20


# --- the items ---


def read(**changes: Any) -> list[Item]:
    seed = changes.pop("seed", 0)
    return list(culture_cards.read_culture_cards(data_section(**{"sets_per_group": 3} | changes), seed))


@cache
def splits(languages: tuple[str, ...], split: str) -> Splits:
    overrides = [
        "data=culture_cards",
        f"data.languages=[{','.join(languages)}]",
        f"data.split={split}",
        "data.sets_per_group=10",
    ]
    return load(load_recipe(ASSETS / "recipes" / "tal_grpo.yaml", overrides).data)


@cache
def scores(languages: tuple[str, ...], trait: str) -> dict[str, float]:
    """Item id -> what the trait scores on it (the same items, however they are split)."""
    both = splits(languages, "group")
    items = both.train + both.test
    return dict(zip((item.id for item in items), trait_scores(items, TRAITS[trait]), strict=True))


def card_of(item: Item) -> culture_cards.Card:
    return next(card for card in CARDS if card.group == item.group)


def test_an_item_asks_about_the_culture_whose_fact_is_the_best_response() -> None:
    for item in read(languages=["en", "ja", "own"], sets_per_group=1):
        card = card_of(item)
        assert item.origins[item.best] == item.culture
        assert item.responses == tuple(card.facts[origin][item.language] for origin in item.origins)
        place = culture_cards.cultures()[str(item.culture)]["place"][item.language]
        assert item.prompt == card.question[item.language].replace("{place}", place)
        assert (item.domain, item.source) == (card.domain, "culture_cards")


def test_no_response_of_an_item_holds_for_the_culture_asked_about_but_the_best() -> None:
    for item in read(
        languages=["en", "own"], sets_per_group=None, groups=["cold_remedy", "childrens_game", "work_custom"]
    ):
        also = card_of(item).also
        assert not any(item.culture in also.get(origin, ()) for origin in item.origins)


@pytest.mark.parametrize("size", range(2, 9))
def test_items_have_the_number_of_responses_asked_for(size: int) -> None:
    items = read(num_responses=size, sets_per_group=1)
    assert {len(item.responses) for item in items} == {size}
    assert {item.culture for item in items} == set(CULTURES)


@pytest.mark.parametrize("languages", LANGUAGE_CHOICES)
def test_item_ids_are_unique_and_begin_with_the_id_of_a_fact(languages: tuple[str, ...]) -> None:
    both = splits(languages, "group")
    ids = [item.id for item in both.train + both.test]
    assert len(ids) == len(set(ids))
    facts = {f"{card.domain}/{card.group}/{culture}" for card in CARDS for culture in card.facts}
    assert {"/".join(i.split("/")[:3]) for i in ids} <= facts


def test_a_language_named_twice_gives_its_items_once() -> None:
    ids = [item.id for item in read(languages=["en", "en"], groups=["hot_drink"])]
    assert len(ids) == len(set(ids))


def test_own_language_items_are_asked_in_the_language_of_their_culture() -> None:
    assert {(item.culture, item.language) for item in read(languages=["own"])} == set(CULTURES.items())


def test_english_and_own_together_do_not_give_american_items_twice() -> None:
    items = read(languages=["en", "own"])
    assert len({item.id for item in items}) == len(items)
    assert {item.language for item in items} == LANGUAGES


def test_english_items_are_whole_flip_sets_and_nothing_else() -> None:
    items = read(sets_per_group=5)
    sets = flip_sets(items)
    assert sum(map(len, sets)) == len(items)
    for members in sets:
        assert sorted(str(item.culture) for item in members) == sorted(members[0].origins)


def test_no_culture_is_asked_about_much_more_often_than_another() -> None:
    counts = Counter(item.culture for item in read(sets_per_group=10))
    assert set(counts) == set(CULTURES)
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_a_limit_takes_so_many_sets_of_every_group_and_the_seed_decides_which() -> None:
    groups = ["hot_drink", "table_taboo", "lucky_charm"]
    few, other = read(groups=groups, sets_per_group=2), read(groups=groups, sets_per_group=2, seed=1)
    assert Counter(item.group for item in few) == dict.fromkeys(groups, 8)
    every = {item.id for item in read(groups=groups, sets_per_group=None)}
    assert {item.id for item in few} < every
    assert {item.id for item in few} != {item.id for item in other} < every


def test_only_the_groups_asked_for_are_read() -> None:
    assert {item.group for item in read(groups=["hot_drink", "table_taboo"])} == {"hot_drink", "table_taboo"}


@pytest.mark.parametrize("languages", [["en"], ["en", "own"]])
def test_reading_twice_gives_the_same_items_in_the_same_order(languages: list[str]) -> None:
    groups = ["hot_drink", "table_taboo", "lucky_charm", "egg_dish", "idiom_crowded", "house_taboo", "work_custom"]
    assert read(languages=languages, groups=groups, seed=3) == read(languages=languages, groups=groups, seed=3)


def digest(items: Iterable[Item]) -> str:
    return hashlib.sha256("\n".join(item.id for item in items).encode()).hexdigest()


def test_another_process_with_other_string_hashes_reads_the_same_items() -> None:
    program = """
import hashlib
from think_as_locals.config.checks import load_recipe
from think_as_locals.data import read
words = ["data=culture_cards", "data.languages=[en,own]", "data.sets_per_group=1", "seed=5"]
items = read(load_recipe("recipes/tal_grpo.yaml", words).data, 5)
print(hashlib.sha256("\\n".join(item.id for item in items).encode()).hexdigest())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "123"},
    )
    assert done.stdout.strip() == digest(read(languages=["en", "own"], sets_per_group=1, seed=5))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"languages": ["fr"]}, "no language 'fr'.*known: ar, de, en, es, ja, ko, own, ru, th, vi, zh"),
        ({"groups": ["hot_drinks"]}, "no question group 'hot_drinks'.*hot_drink"),
        ({"languages": ["EN"]}, "no language 'EN'"),
    ],
)
def test_an_unknown_language_or_group_is_an_error_that_lists_the_known_ones(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(**asked)


# --- what one scores without judging ---


def check_about_a_quarter(items: Sequence[Item], known: dict[str, float]) -> None:
    assert len(items) > 700
    assert sum(known[item.id] for item in items) / len(items) == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("languages", LANGUAGE_CHOICES)
@pytest.mark.parametrize("trait", TRAITS)
def test_no_trait_of_a_text_tells_the_answer_on_the_whole(languages: tuple[str, ...], trait: str) -> None:
    both = splits(languages, "group")
    check_about_a_quarter(both.train + both.test, scores(languages, trait))


@pytest.mark.parametrize(("languages", "split"), SPLIT_CHOICES)
@pytest.mark.parametrize("trait", TRAITS)
def test_no_trait_of_a_text_tells_the_answer_on_the_test_side(
    languages: tuple[str, ...], trait: str, split: str
) -> None:
    check_about_a_quarter(splits(languages, split).test, scores(languages, trait))


@pytest.mark.parametrize(("languages", "split"), SPLIT_CHOICES)
def test_as_shown_every_position_is_about_equally_often_the_best(languages: tuple[str, ...], split: str) -> None:
    items = splits(languages, split).test
    positions = Counter(shuffle_responses(item).best for item in items)
    assert all(positions[i] / len(items) == pytest.approx(0.25, abs=0.05) for i in range(4))


# --- splits ---


@pytest.mark.parametrize(("languages", "split"), SPLIT_CHOICES)
def test_the_test_side_is_a_fifth_and_has_every_culture_and_domain(languages: tuple[str, ...], split: str) -> None:
    both = splits(languages, split)
    assert len(both.test) / len(both.train + both.test) == pytest.approx(0.2, abs=0.02)
    assert len({(item.culture, item.domain) for item in both.test}) == 40


@pytest.mark.parametrize(("languages", "split"), [(("en",), "group"), (("en", "own"), "group"), (("en",), "pairing")])
def test_flip_sets_are_whole_on_both_sides(languages: tuple[str, ...], split: str) -> None:
    both = splits(languages, split)
    for side in (both.train, both.test):
        english = [item for item in side if item.language == "en"]
        sets = flip_sets(english)
        assert sum(map(len, sets)) == len(english) > 700
        bests: dict[int, int] = defaultdict(int)
        for members in sets:
            for item in members:
                bests[item.responses.index(item.responses[item.best])] += 1
        assert len(set(bests.values())) == 1


# --- opinion cards ---


FEW = (
    *("everyday_breakfast", "street_snack", "greeting_gesture", "lucky_charm"),
    *("gift_taboo", "warned_about", "idiom_heavy_rain", "idiom_very_easy"),
)
CARD_OF = {card.question["en"].replace("{place}", "where you live"): card for card in cards()}


@cache
def opinions(groups: tuple[str, ...] | None = None, seed: int = 0) -> tuple[Item, ...]:
    return tuple(culture_cards.read_opinion_cards(data_section(groups=groups and list(groups)), seed))


def custom(item: Item, place: int) -> tuple[str, str]:
    return CARD_OF[item.prompt].group, item.origins[place]


@cache
def fitted() -> tuple[dict[tuple[str, str], float], float]:
    """Worth of every custom in log-odds, and what is added to one's own: the likeliest ones, by Newton's method."""
    items = opinions(FEW)
    names = sorted({custom(item, place) for item in items for place in (0, 1)})
    column = {name: i for i, name in enumerate(names)}
    x: NDArray[np.float64] = np.zeros((len(items), len(names) + 1))
    for row, item in enumerate(items):
        for place, sign in ((0, 1), (1, -1)):
            x[row, column[custom(item, place)]] += sign
            x[row, -1] += sign * (item.origins[place] == item.culture)
    worth = np.zeros(len(names) + 1)
    for _ in range(12):
        p = expit(x @ worth)
        # Customs of one question are compared with one another alone: a small penalty says where their middle is.
        worth += np.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]) + 0.01 * np.eye(len(worth)), x.T @ (1 - p))
    return dict(zip(names, worth[:-1].tolist(), strict=True)), float(worth[-1])


def test_there_are_so_many_people_and_pairs_of_each_and_ids_are_unique() -> None:
    items = opinions()
    assert Counter(item.culture for item in items) == dict.fromkeys(cultures(), PEOPLE * PAIRS)
    assert set(Counter(item.group for item in items).values()) == {PAIRS}
    assert len({item.group for item in items}) == PEOPLE * len(cultures())
    assert len({item.id for item in items}) == len(items)
    assert all(item.group.startswith(f"{item.culture}-") for item in items)


def test_the_first_of_two_customs_that_answer_the_question_is_preferred() -> None:
    for item in opinions():
        card = CARD_OF[item.prompt]
        assert item.best == 0
        assert item.responses == tuple(card.facts[origin]["en"] for origin in item.origins)
        assert (item.domain, item.language, item.source) == (card.domain, "en", "opinion_cards")


def test_no_prompt_names_a_country() -> None:
    places = {about["place"]["en"] for about in cultures().values()}
    prompts = {item.prompt for item in opinions()}
    assert len(prompts) == 100
    assert [prompt for prompt in prompts if NAMES.search(prompt) or "{" in prompt] == []
    assert [prompt for prompt in prompts for place in places if place in prompt] == []


def test_half_of_the_pairs_hold_a_custom_of_ones_own_and_no_other_that_is_ones_own_as_well() -> None:
    own = 0
    for item in opinions():
        card = CARD_OF[item.prompt]
        of_others = [origin for origin in item.origins if origin != item.culture]
        own += len(of_others) == 1
        assert len(set(item.origins)) == 2
        assert not any(item.culture in card.also.get(origin, ()) for origin in of_others)
    assert own / len(opinions()) == pytest.approx(OWN_SHARE, abs=0.02)


def test_ones_own_is_worth_as_much_more_as_is_said() -> None:
    assert fitted()[1] == pytest.approx(OWN, abs=0.2)


def test_popularity_spreads_as_is_said() -> None:
    of_group = defaultdict(list)
    for (group, _), worth in fitted()[0].items():
        of_group[group].append(worth)
    assert set(of_group) == set(FEW)
    spread = math.sqrt(np.mean([np.var(worths, ddof=1) for worths in of_group.values()]))
    assert spread == pytest.approx(POPULARITY, abs=0.35)


def test_what_is_popular_is_so_with_people_of_all_countries() -> None:
    """Where neither custom is one's own, one fit for everybody is right about each country."""
    worth, _ = fitted()
    for culture in cultures():
        said = [item for item in opinions(FEW) if item.culture == culture and culture not in item.origins]
        odds = [worth[custom(item, 0)] - worth[custom(item, 1)] for item in said]
        # The share of pairs that go the likelier way, as observed and as expected.
        assert np.mean(np.array(odds) > 0) == pytest.approx(expit(np.abs(odds)).mean(), abs=0.06), culture


def test_a_country_has_a_minoritys_view_where_its_customs_are_unpopular() -> None:
    own = [item for item in opinions(FEW) if item.culture in item.origins]
    worth, _ = fitted()
    unpopular = []
    for item in own:
        mine = item.origins.index(str(item.culture))
        if worth[custom(item, mine)] < worth[custom(item, 1 - mine)]:
            unpopular.append(mine == 0)
    assert len(unpopular) > 0.3 * len(own)
    assert 0.5 < np.mean(unpopular) < 0.75  # preferred all the same, though by no means always


def test_the_seed_is_who_the_people_are_and_what_is_popular() -> None:
    groups = ("lucky_charm", "street_snack")
    assert opinions(groups, 3) == opinions.__wrapped__(groups, 3)
    first, other = opinions(FEW, 0), opinions(FEW, 1)
    assert [item.id for item in first] == [item.id for item in other]
    likely = [Counter((custom(i, 0), custom(i, 1)) for i in items) for items in (first, other)]
    common = likely[0].keys() & likely[1].keys()
    shares = np.array([[n[a, b] / (n[a, b] + n[b, a]) for n in likely] for a, b in common])
    assert abs(np.corrcoef(shares.T)[0, 1]) < 0.5  # other customs are liked


def test_only_the_cards_of_the_groups_asked_for_are_compared() -> None:
    assert {CARD_OF[item.prompt].group for item in opinions(FEW)} == set(FEW)
    assert {CARD_OF[item.prompt].group for item in opinions(("lucky_charm",))} == {"lucky_charm"}


def test_an_unknown_group_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"no question group 'charms' in the culture cards; known: .*lucky_charm"):
        opinions(("lucky_charm", "charms"))


@pytest.mark.parametrize("by_country", [True, False])
def test_they_split_by_people(*, by_country: bool) -> None:
    splits = split_people(opinions(FEW), 0.15, 0, by_country=by_country)
    of_test: dict[Any, set[str]] = defaultdict(set)
    for item in splits.test:
        of_test[item.culture].add(item.group)
    assert sum(map(len, of_test.values())) == 0.15 * PEOPLE * len(cultures())
    if by_country:
        assert {len(groups) for groups in of_test.values()} == {6}

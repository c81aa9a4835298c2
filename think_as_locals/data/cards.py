"""Culture cards: 100 questions, each with a true answer for ten cultures, all in ten languages.

`cards/<domain>/<group>.json` holds a question with a slot for the place, and a fact for each culture. The facts of a
group exclude one another (`also` lists the exceptions), which makes flip sets of any four cultures.

Opinion cards are preferences of simulated people, generated from the cards: of two customs a person prefers the one of
higher utility, a random popularity plus a bonus if it is from the person's own country. The prompt names no country.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product, zip_longest
from pathlib import Path
from typing import Any

from think_as_locals.config.schema import DataSection
from think_as_locals.data.rows import size_of
from think_as_locals.data.splits import flip_set_combinations
from think_as_locals.runtime.files import read_json
from think_as_locals.types import DataError, Item

_CARDS = Path(__file__).with_name("cards")
DOMAINS = ("commonsense", "value", "safety", "linguistic")


@dataclass(frozen=True, slots=True)
class Card:
    """One question group: `question[language]`, `facts[culture][language]`, `also[culture]`."""

    domain: str
    group: str
    question: Mapping[str, str]
    facts: Mapping[str, Mapping[str, str]]
    also: Mapping[str, Sequence[str]]

    @property
    def name(self) -> str:
        """The prefix of its items' ids."""
        return f"{self.domain}/{self.group}"

    def others(self, culture: str) -> list[str]:
        """Return the cultures whose facts do not hold for this one."""
        return [other for other in self.facts if other != culture and culture not in self.also.get(other, ())]


@cache
def cultures() -> dict[str, dict[str, Any]]:
    """Return by culture code its language and, in every language, the words for "in that place"."""
    return read_json(_CARDS / "cultures.json")


@cache
def cards() -> tuple[Card, ...]:
    """Return all cards, ordered by domain and group."""
    return tuple(
        Card(domain=domain, group=path.stem, **read_json(path))
        for domain in DOMAINS
        for path in sorted((_CARDS / domain).iterdir())
    )


def read_culture_cards(data: DataSection, seed: int) -> Iterator[Item]:
    """Yield the items of the culture cards, one flip set after the other; `own` is the language of the culture."""
    known, chosen = cards()[0].question, _chosen_cards(data.groups)
    languages = dict.fromkeys(known if data.languages is None else data.languages)
    _check_known("language", [*languages], {"own", *known})
    for language in languages:
        if language == "own":
            for culture, about in cultures().items():
                if about["language"] not in languages:
                    yield from _own_items(chosen, culture, data, seed)
            continue
        for card in chosen:
            sets = flip_set_combinations(
                tuple(card.facts), card.also, size_of(data), data.sets_per_group, f"{seed}:{card.name}"
            )
            for members in sets:
                for culture in members:
                    yield _item(card, culture, language, members)


def in_language(item: Item, language: str | None) -> Item | None:
    """Return a culture card's item in a language (`None`: that of its culture); `None` for items of other sources."""
    card = next((card for card in cards() if card.name == f"{item.domain}/{item.group}"), None)
    if item.source != "culture_cards" or card is None or item.culture is None or item.culture not in card.facts:
        return None
    return _item(card, item.culture, language or str(cultures()[item.culture]["language"]), item.origins)


def _own_items(chosen: Sequence[Card], culture: str, data: DataSection, seed: int) -> Iterator[Item]:
    """Yield items about one culture in its own language; they form no flip sets, as each culture has another one."""
    # A language has shorter words for things of its own culture. So that length tells nothing, the right answer has
    # every rank of length equally often, over all cards.
    language = cultures()[culture]["language"]
    by_rank = zip(*(_rivals_by_rank(card, culture, language, size_of(data), seed) for card in chosen), strict=True)
    # Within a rank the cards take turns.
    ranks = [[pick for turn in zip_longest(*of_cards) for pick in turn if pick] for of_cards in by_rank]
    wanted = min(map(len, ranks))
    if data.sets_per_group is not None:  # as many items as in that many flip sets
        wanted = min(wanted, data.sets_per_group * len(chosen) // len(cultures()))
    for rank in ranks:
        for card, wrong in rank[:wanted]:
            yield _item(card, culture, language, tuple(sorted((culture, *wrong))))


def _rivals_by_rank(
    card: Card, culture: str, language: str, size: int, seed: int
) -> list[list[tuple[Card, tuple[str, ...]]]]:
    """Return sets of other cultures, shuffled, by how many of their answers are shorter than the right one."""
    lengths = {c: len(fact[language]) for c, fact in card.facts.items()}
    rivals = [c for c in card.others(culture) if lengths[c] != lengths[culture]]
    ranks: list[list[tuple[Card, tuple[str, ...]]]] = [[] for _ in range(size)]
    for wrong in combinations(rivals, size - 1):
        ranks[sum(lengths[c] < lengths[culture] for c in wrong)].append((card, wrong))
    rng = random.Random(f"{seed}:{card.name}/{culture}")
    for rank in ranks:
        rng.shuffle(rank)
    return ranks


def _item(card: Card, culture: str, language: str, chosen: tuple[str, ...]) -> Item:
    return Item(
        id=f"{card.name}/{culture}/{language}/{'-'.join(chosen)}",
        prompt=card.question[language].replace("{place}", cultures()[culture]["place"][language]),
        responses=tuple(card.facts[c][language] for c in chosen),
        best=chosen.index(culture),
        culture=culture,
        language=language,
        domain=card.domain,
        group=card.group,
        source="culture_cards",
        origins=chosen,
    )


def _chosen_cards(groups: Sequence[str] | None) -> list[Card]:
    """Return the cards of some question groups, or of all (`None`)."""
    _check_known("question group", groups or (), {card.group for card in cards()})
    return [card for card in cards() if groups is None or card.group in groups]


def _check_known(what: str, requested: Sequence[str], known: set[str]) -> None:
    if unknown := sorted(set(requested) - known):
        names = ", ".join(map(repr, unknown))
        raise DataError(f"no {what} {names} in the culture cards; known: {', '.join(sorted(known))}")


# --- Opinion cards ---

PEOPLE = 40  # of each country
PAIRS = 24  # compared by each person
OWN_SHARE = 0.5  # of pairs with a custom of the person's own country
POPULARITY, OWN = 1.5, 2.0  # utility in log-odds: the factor of a standard normal draw, the bonus for one's own country


def read_opinion_cards(data: DataSection, seed: int) -> Iterator[Item]:
    """Yield the pairs of every person: the first response is the preferred one, `group` is the person."""
    chosen = _chosen_cards(data.groups)
    for culture, number in product(cultures(), range(PEOPLE)):
        person = f"{culture}-{number:02}"
        rng = random.Random(f"{seed}:{person}")
        for pair in range(PAIRS):
            card = rng.choice(chosen)
            others = card.others(culture)
            if rng.random() < OWN_SHARE:
                first, second = culture, rng.choice(others)
            else:
                first, second = rng.sample(others, 2)
            ahead = _utility(card, first, culture, seed) - _utility(card, second, culture, seed)
            if rng.random() >= 1 / (1 + math.exp(-ahead)):
                first, second = second, first
            yield Item(
                id=f"opinion/{person}/{pair}",
                prompt=card.question["en"].replace("{place}", "where you live"),
                responses=(card.facts[first]["en"], card.facts[second]["en"]),
                best=0,
                culture=culture,
                language="en",
                domain=card.domain,
                group=person,
                source="opinion_cards",
                origins=(first, second),
            )


def _utility(card: Card, custom: str, culture: str, seed: int) -> float:
    popularity = random.Random(f"{seed}:{card.name}/{custom}").gauss(0, 1)
    return POPULARITY * popularity + (OWN if custom == culture else 0)

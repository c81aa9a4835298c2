"""What one scores without judging: a number beside these means something, alone it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from babel import Locale, UnknownLocaleError

from think_as_locals.types import Item

Trait = Callable[[Item, str], float]


def longest(_item: Item, response: str) -> float:
    """Prefers the longest response, in characters."""
    return len(response)


def shortest(_item: Item, response: str) -> float:
    """Prefers the shortest response."""
    return -len(response)


def label_match(item: Item, response: str) -> float:
    """Prefers a response that names the culture, in English or in the item's language."""
    return float(any(name in response.casefold() for name in _names(item.culture, item.language)))


TRAITS: Mapping[str, Trait] = MappingProxyType({"longest": longest, "shortest": shortest, "label_match": label_match})


def trait_scores(items: Sequence[Item], trait: Trait) -> list[float]:
    """The score of preferring a trait: 1/k where the best response is among k that have most of it, else 0."""
    scores = []
    for item in items:
        values = [trait(item, response) for response in item.responses]
        top = max(values)
        scores.append(1 / values.count(top) if values[item.best] == top else 0.0)
    return scores


def _names(culture: str | None, language: str) -> set[str]:
    if culture is None:
        return set()
    names = {Locale("en").territories.get(culture, culture)}
    with suppress(UnknownLocaleError, ValueError):  # of a language that CLDR does not know, the English name is enough
        names.add(Locale.parse(language, sep="-").territories.get(culture, culture))
    return {name.casefold() for name in names}

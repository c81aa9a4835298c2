"""Breakdowns of accuracy: by culture, domain, language, and properties of languages.

Resource classes, from 0 (hardly any data) to 5 (the most), are those of Joshi et al. 2020 (arXiv 2004.09095), from the
list published with it: labelled corpora and Wikipedia pages as of 2020. Families are Glottolog's top level, scripts
CLDR's likely ones unless the tag names another (`zh-Hant`). The table has the languages of CARB, BLEnD and the public
preference sets; all others are `unknown`.

CARB's cultures are those of its ten languages (arXiv 2509.21798): half of its rows name no country, and the others name
several for a language. So its items count under the name of their language, as does any item without a culture. In data
without cultures, macro accuracy is then over languages and domains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from babel import Locale

from think_as_locals.data.sources import SOURCES
from think_as_locals.runtime.scripts import script
from think_as_locals.types import DataError, Item, first_of

UNKNOWN = "unknown"


class LanguageProperties(NamedTuple):
    """Resource class of Joshi et al. 2020 (`0` to `5`), top-level family and ISO 15924 script, or `unknown`."""

    resource_class: str
    family: str
    script: str


_LANGUAGES = {
    ("5", "Afro-Asiatic"): "ar",
    ("5", "Indo-European"): "de en es fr",
    ("5", "Japonic"): "ja",
    ("5", "Sino-Tibetan"): "zh",
    ("4", "Austroasiatic"): "vi",
    ("4", "Indo-European"): "cs fa hi it nl pl pt ru",
    ("4", "Koreanic"): "ko",
    ("4", "Turkic"): "tr",
    ("3", "Afro-Asiatic"): "he",
    ("3", "Austronesian"): "id",
    ("3", "Indo-European"): "bn el ro uk",
    ("3", "Tai-Kadai"): "th",
    ("2", "Afro-Asiatic"): "am ha",
    ("1", "Austronesian"): "su",
    ("1", "Indo-European"): "as",
    ("1", "Turkic"): "az",
}
_BY_TAG = {tag: known for known, tags in _LANGUAGES.items() for tag in tags.split()}


@lru_cache
def describe(tag: str) -> LanguageProperties:
    """Return resource class, family and script of a BCP-47 tag, e.g. `3`, `Tai-Kadai`, `Thai` of `th`."""
    try:
        written = script(tag)
    except DataError:
        written = UNKNOWN
    return LanguageProperties(*_BY_TAG.get(tag.split("-")[0].lower(), (UNKNOWN, UNKNOWN)), written)


@lru_cache
def language_name(tag: str) -> str:
    """Return the English name of a language: `Thai` for `th`, `Traditional Chinese` for `zh-Hant`; else the tag."""
    return str(Locale("en").languages.get(tag.replace("-", "_"), tag))


def _culture(item: Item) -> str:
    by_language = item.source in _AXES or item.culture is None
    return language_name(item.language.split("-")[0]) if by_language else str(item.culture)


_AXES = {name: source.axes for name, source in SOURCES.items() if source.axes}

BREAKDOWNS: Mapping[str, Callable[[Item], str]] = MappingProxyType(
    {
        "culture": _culture,
        "domain": lambda item: item.domain,
        "language": lambda item: item.language,
        # One string for each cell, not for each item.
        "cell": lambda item: sys.intern(f"{_culture(item)}/{item.domain}"),
        "resource_class": lambda item: describe(item.language).resource_class,
        "family": lambda item: describe(item.language).family,
        "script": lambda item: describe(item.language).script,
    }
)
"""By name, what an item is counted under; class, family and script are those of its language."""


def macro_cells(items: Iterable[Item]) -> dict[str, Any]:
    """Return over how many `cells` of how many (`of`) a macro accuracy is the mean, and which are `missing`.

    A source that declares its axes has all combinations as cells; others have those of their items.
    """
    items = list(items)
    found = set(map(BREAKDOWNS["cell"], items))
    axes = [_AXES[source] for source in {item.source for item in items} & _AXES.keys()]
    declared = [f"{culture}/{domain}" for cultures, domains in axes for culture in cultures for domain in domains]
    missing = [cell for cell in declared if cell not in found]
    return {"cells": len(found), "of": len(found) + len(missing), "missing": missing}


def macro_warning(macro: Mapping[str, Any]) -> str:
    """Return a line about the missing cells in the result of `macro_cells`; empty if none is missing."""
    if not (missing := macro["missing"]):
        return ""
    return f"macro over {macro['cells']} of {macro['of']} cells; missing: {first_of(missing, 8)}"

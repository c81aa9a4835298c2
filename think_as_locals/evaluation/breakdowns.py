"""What accuracy is broken down by: culture, domain, language, and what languages have in common.

Resource classes, from 0, hardly any data, to 5, the most, are those of Joshi et al. 2020 (arXiv 2004.09095), after the
list published with it: labelled corpora and Wikipedia pages as of 2020. Families are Glottolog's top level, scripts
CLDR's likely ones unless the tag names another (`zh-Hant`). The table has the languages of CARB, of BLEnD and of the
public preference sets; any other is `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from think_as_locals.judging.rubric import script
from think_as_locals.types import DataError, Item

UNKNOWN = "unknown"


class Language(NamedTuple):
    """Resource class of Joshi et al. 2020 (`0` to `5`), top-level family and ISO 15924 script, each maybe `unknown`."""

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


def describe(tag: str) -> Language:
    """Return resource class, family and script of a BCP-47 tag, e.g. `3`, `Tai-Kadai`, `Thai` of `th`."""
    try:
        written = script(tag)
    except DataError:
        written = UNKNOWN
    return Language(*_BY_TAG.get(tag.split("-")[0].lower(), (UNKNOWN, UNKNOWN)), written)


BREAKDOWNS: Mapping[str, Callable[[Item], str]] = MappingProxyType(
    {
        "culture": lambda item: item.culture or "none",
        "domain": lambda item: item.domain,
        "language": lambda item: item.language,
        "cell": lambda item: f"{item.culture or 'none'}/{item.domain}",
        "resource_class": lambda item: describe(item.language).resource_class,
        "family": lambda item: describe(item.language).family,
        "script": lambda item: describe(item.language).script,
    }
)
"""What an item is counted under, by name; class, family and script are those of its language."""

"""Resource class, family and script: the published values, and `unknown` rather than a guess."""

from __future__ import annotations

import pytest

from think_as_locals.data.sources.blend import REGIONS
from think_as_locals.evaluation.breakdowns import UNKNOWN, describe


@pytest.mark.parametrize(
    ("tag", "resource_class", "family", "script"),
    [
        ("ar", "5", "Afro-Asiatic", "Arab"),
        ("de", "5", "Indo-European", "Latn"),
        ("en", "5", "Indo-European", "Latn"),
        ("es", "5", "Indo-European", "Latn"),
        ("ja", "5", "Japonic", "Jpan"),
        ("zh", "5", "Sino-Tibetan", "Hans"),
        ("ko", "4", "Koreanic", "Kore"),
        ("ru", "4", "Indo-European", "Cyrl"),
        ("vi", "4", "Austroasiatic", "Latn"),
        ("th", "3", "Tai-Kadai", "Thai"),
        ("el", "3", "Indo-European", "Grek"),
        ("id", "3", "Austronesian", "Latn"),
        ("fa", "4", "Indo-European", "Arab"),
        ("am", "2", "Afro-Asiatic", "Ethi"),
        ("ha", "2", "Afro-Asiatic", "Latn"),
        ("as", "1", "Indo-European", "Beng"),
        ("az", "1", "Turkic", "Latn"),
        ("su", "1", "Austronesian", "Latn"),
    ],
)
def test_languages_of_carb_and_blend_are_known(tag: str, resource_class: str, family: str, script: str) -> None:
    assert describe(tag) == (resource_class, family, script)


def test_a_tag_may_name_region_or_script() -> None:
    assert describe("pt-BR") == describe("pt")
    assert describe("zh-Hant") == ("5", "Sino-Tibetan", "Hant")
    assert describe("zh-TW").script == "Hant"
    assert describe("EN") == describe("en")


@pytest.mark.parametrize("tag", ["xx", "tlh", "no-such-language", "-", "und"])
def test_what_is_not_in_the_table_is_named_unknown(tag: str) -> None:
    assert describe(tag)[:2] == (UNKNOWN, UNKNOWN)


def test_a_script_is_known_even_where_class_and_family_are_not() -> None:
    assert describe("ka") == (UNKNOWN, UNKNOWN, "Geor")
    assert describe("xx").script == UNKNOWN


def test_every_language_of_the_embedded_and_the_open_data_is_known() -> None:
    cards = ["ar", "de", "en", "es", "ja", "ko", "ru", "th", "vi", "zh"]
    assert all(UNKNOWN not in describe(tag) for tag in [*cards, *(language for _, language, _ in REGIONS.values())])

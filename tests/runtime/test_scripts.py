"""The scripts of languages, and the share of a text that is in them."""

from __future__ import annotations

import pytest

from think_as_locals.runtime.scripts import script, script_share, scripts
from think_as_locals.types import DataError


def test_scripts_match_cldr() -> None:
    expected = {"vi": ("LATIN",), "ru": ("CYRILLIC",), "sr-Latn": ("LATIN",), "hi": ("DEVANAGARI",)}
    expected |= {"ko": ("HANGUL",), "sr": ("CYRILLIC", "LATIN"), "pa-PK": ("ARABIC",)}
    assert {language: scripts(language) for language in expected} == expected
    assert [script(tag) for tag in ("zh-TW", "zh", "am")] == ["Hant", "Hans", "Ethi"]


@pytest.mark.parametrize("language", ["", "zz", "english", "???", "en_US"])
def test_unknown_scripts_are_refused(language: str) -> None:
    with pytest.raises(DataError, match=f"language {language!r}: expected a BCP-47 tag".replace("?", r"\?")):
        scripts(language)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        *(("am", "ሰላም"), ("ta", "வணக்கம்"), ("te", "నమస్కారం"), ("ka", "გამარჯობა"), ("hy", "բարեւ")),
        *(("as", "নমস্কাৰ"), ("my", "မင်္ဂလာပါ"), ("km", "សួស្តី"), ("or", "ନମସ୍କାର"), ("iu", "ᐊᐃ"), ("ko", "안녕")),
        *(("sr", "Zdravo"), ("sr", "Здраво")),
    ],
)
def test_letters_of_a_language_are_told_from_others(language: str, text: str) -> None:
    assert script_share(text, language) == 1
    assert script_share("你好", language) == 0


def test_share_is_of_letters_alone() -> None:
    assert script_share("wai สวัส 123", "th") == pytest.approx(3 / 6)  # a vowel above is no letter
    assert [script_share(*each) for each in (("123", "th"), ("wai", "ha"), ("wai", "und"), ("wai", "zz"))] == [1] * 4

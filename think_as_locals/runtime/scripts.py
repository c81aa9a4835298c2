"""The scripts of languages, by Unicode's CLDR, and the letters of a text that are in them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache

from babel import Locale
from babel.core import UnknownLocaleError, get_global, parse_locale

from think_as_locals.types import DataError

# Prefixes of Unicode names of letters, if not the English name of the script.
_HAN = ("CJK", "IDEOGRAPHIC")
_PREFIXES = dict.fromkeys(("Hani", "Hans", "Hant"), _HAN) | {"Jpan": (*_HAN, "HIRAGANA", "KATAKANA")}
_PREFIXES |= {"Kore": ("HANGUL",), "Beng": ("BENGALI",), "Orya": ("ORIYA",)}
_PREFIXES |= {"Cans": ("CANADIAN",), "Mtei": ("MEETEI",), "Nkoo": ("NKO",)}


@cache
def scripts(language: str) -> tuple[str, ...]:
    """Return the prefixes of the Unicode names of a language's letters; any letter's for `und`.

    Those of a tag without a region are of all scripts that the language is written in.
    """
    if language == "und":
        return ("",)
    regional = re.compile(re.escape(language) + "_[A-Z]{2}")  # Serbian is Cyrillic, in Montenegro (`sr_ME`) Latin
    others = (tag.replace("_", "-") for tag in get_global("likely_subtags") if regional.fullmatch(tag))
    english = Locale("en").scripts
    codes = map(script, (language, *others))
    found = (name for code in codes for name in _PREFIXES.get(code) or (english[code].upper().split()[0],))
    return tuple(dict.fromkeys(found))


@cache
def script(language: str) -> str:
    """Return the ISO 15924 code of a language's script, such as `Hant` for `zh-TW`; a DataError if it is unknown."""
    try:
        name, territory, code, *_ = parse_locale(language, sep="-")
        likely = get_global("likely_subtags")
        code = code or parse_locale(likely.get(f"{name}_{territory}") or likely[name])[2]
        Locale("en").scripts[code]  # KeyError if CLDR has no name for it
        return str(code)
    except (ValueError, TypeError, KeyError, AttributeError, UnknownLocaleError):
        raise DataError(
            f"language {language!r}: expected a BCP-47 tag with a known script, such as 'th' or 'zh-Hant'"
        ) from None


def script_share(text: str, language: str) -> float | None:
    """Return the share of a text's letters in the script of a language (German and English share one)."""
    expected, letters = scripts(language), Counter(filter(str.isalpha, text))
    own = sum(n for letter, n in letters.items() if unicodedata.name(letter, "").startswith(expected))
    return own / letters.total() if letters else None

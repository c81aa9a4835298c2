"""The scripts of languages, by Unicode's CLDR, and the letters of a text that are in them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from contextlib import suppress
from functools import cache
from itertools import chain

from babel import Locale
from babel.core import UnknownLocaleError, get_global, parse_locale

from think_as_locals.types import DataError

_HAN = ("CJK", "IDEOGRAPHIC")
# Prefixes of Unicode names of letters, if not the English name of the script.
_PREFIXES: dict[str, tuple[str, ...]] = dict.fromkeys(("Hani", "Hans", "Hant"), _HAN)
_PREFIXES |= {"Jpan": (*_HAN, "HIRAGANA", "KATAKANA"), "Kore": ("HANGUL",), "Beng": ("BENGALI",), "Orya": ("ORIYA",)}
_PREFIXES |= {"Cans": ("CANADIAN",), "Mtei": ("MEETEI",), "Nkoo": ("NKO",)}


@cache
def scripts(language: str) -> tuple[str, ...]:
    """Return the prefixes of the Unicode names of a language's letters, in all its scripts; any letter's for `und`."""
    if language == "und":
        return ("",)
    regional = re.compile(re.escape(language) + "_[A-Z]{2}")  # Serbian is Cyrillic, in Montenegro (`sr_ME`) Latin
    tags = (language, *(tag.replace("_", "-") for tag in get_global("likely_subtags") if regional.fullmatch(tag)))
    found = (_PREFIXES.get(code) or (Locale("en").scripts[code].upper().split()[0],) for code in map(script, tags))
    return tuple(dict.fromkeys(chain.from_iterable(found)))


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


def script_share(text: str, language: str) -> float:
    """Return the share of a text's letters in the script of a language; 1 without letters or if it is unknown."""
    letters = Counter(filter(str.isalpha, text))
    with suppress(DataError, ZeroDivisionError):
        prefixes = scripts(language)
        own = (n for letter, n in letters.items() if unicodedata.name(letter, "").startswith(prefixes))
        return sum(own) / letters.total()
    return 1.0

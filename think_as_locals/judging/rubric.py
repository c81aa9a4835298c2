"""Measures of a judgement that need no model: the part that `criteria_gain` scores, and whether it judges at all.

A pure function cannot tell a true criterion from a false one. It can tell words from letters and stop words, the
judge's own words from those of the item, and an analysis that covers every response from one that does not.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

from babel import Locale
from babel.core import UnknownLocaleError, get_global, parse_locale

from think_as_locals.judging.formats import SECTIONS
from think_as_locals.judging.prompt import culture_name
from think_as_locals.types import LABELS, DataError, Item, Judgement, Rubric

_GRAM = 3  # characters: suits scripts with and without spaces between words
_OVERLAP = 0.5  # share of trigrams in an earlier criterion from which a criterion repeats it
_QUOTED = 0.7  # share of trigrams in the prompt or one response from which a text repeats it
_COPIED = 0.8  # share of letters in long pieces of the item, read in either direction, from which a text is copied
_KNOWN = 0.25  # share of known words from which a text in another script than the item's is in a real language
_LETTERS, _DISTINCT_LETTERS = 10, 5  # minimum of a criterion, the former in letters as `_size` counts them
_WORD = 3  # minimum letters of a content word
_BASIC_PLANE = 0xFFFF  # the last character of Unicode's Basic Multilingual Plane
_PHRASE = 200  # characters of a name or description that are searched for in an analysis
_INDIC = ("Deva", "Beng", "Gujr", "Guru", "Knda", "Mlym", "Orya", "Sinh", "Taml", "Telu")
_SPACELESS = ("Hans", "Hant", "Jpan", "Thai", "Khmr", "Laoo", "Mymr")
_WORD_PIECE = dict.fromkeys((*_SPACELESS, *_INDIC), 3) | dict.fromkeys(
    ("Hans", "Hant", "Jpan", "Kore"), 2
)  # letters; elsewhere 4
_LONG_PIECE = dict.fromkeys((*_SPACELESS, "Kore"), 5)  # letters that two texts do not share by chance; elsewhere 9
_OPENING, _CLOSING = "<rubric>", "</rubric>"
_SPELLED = {  # names of letters in English, and in the spelling alphabet
    **dict.fromkeys(("ay", "alpha", "alfa"), "A"),
    **dict.fromkeys(("bee", "bravo"), "B"),
    **dict.fromkeys(("cee", "charlie"), "C"),
    **dict.fromkeys(("dee", "delta"), "D"),
    **dict.fromkeys(("ee", "echo"), "E"),
    **dict.fromkeys(("ef", "eff", "foxtrot"), "F"),
    **dict.fromkeys(("gee", "golf"), "G"),
    **dict.fromkeys(("aitch", "haitch", "hotel"), "H"),
}
_LATIN_NAME = re.compile(r"(?:LATIN|INDICATOR|MODIFIER).* LETTER (?:SMALL |CAPITAL )*([A-Z])(?: WITH .*)?$")
_ONE_LETTER_WORDS = "aàáâãeéèêавсηή"  # that look like labels: in English, Romance and Slavic languages, Greek
_RESPONSE = re.compile(r"\b(?:candidate|choice|option|reply|response)\s+$", re.IGNORECASE)
_NAME = 40  # characters before a label that are searched for it
_APOSTROPHES = ("'", "’", "ʼ")
_SCRIPTS = {  # prefixes of Unicode names of letters, if not the English name of the script
    "Hans": ("CJK", "IDEOGRAPHIC"),
    "Hant": ("CJK", "IDEOGRAPHIC"),
    "Jpan": ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA"),
    "Kore": ("HANGUL", "CJK"),
    "Beng": ("BENGALI",),
    "Orya": ("ORIYA",),
}


def rubric_span(judgement: Judgement, num_responses: int) -> str | None:
    """Return the part of a completion that `criteria_gain` may score: from its beginning through `</rubric>`.

    It ends before the first line that names a response, so that no rubric raises the probability of a verdict by naming
    it. Such a line contains a tag of the grammar, or one of the labels as a word of its own: in either case (also the
    article "A"), with digits or marks, as a look-alike letter of any script, doubled, or spelled out in English. Words
    of one letter do not count if another word follows ("a bow", Russian "В Таиланде"), except after "option" and the
    like ("option a wins"). Other references ("the second one", a code of the policy's own) are not detected.

    Returns `None` if there is no parsed rubric, text before it, or a response named in the first criterion.
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


def criteria_share(rubric: Rubric, item: Item, language: str) -> float:
    """Return the share of the criteria that say something in words of their own.

    A criterion says nothing if it has less than about three words, or only stop words (even joined ones), or if it
    repeats the prompt, a response, or an earlier criterion, or consists of pieces of them.
    """
    prompt = _grams(item.prompt, language)
    quotable = [prompt | _grams(text, language) for text in item.responses]
    kept: list[frozenset[str]] = []
    for criterion in rubric.criteria:
        text = f"{criterion.name} {criterion.description}"
        grams = _grams(text, language)
        if (
            _size(" ".join(dict.fromkeys(_words(text)))) >= _LETTERS
            and len(set(filter(str.isalpha, text.casefold()))) >= _DISTINCT_LETTERS
            and not all(map(_joined_stop_words(language).fullmatch, _content(text, language)))
            and all(len(grams & quote) < _QUOTED * len(grams) for quote in quotable)
            and _copied(text, (item.prompt, *item.responses), language) < _COPIED
            and all(len(grams & old) < _OVERLAP * min(len(grams), len(old)) for old in kept)
        ):
            kept.append(grams)
    return len(kept) / len(rubric.criteria)


def weighed_share(analysis: str | None, item: Item, language: str, rubric: Rubric | None = None) -> float:
    """Return the share of the responses about which an analysis says something, after their labels.

    Stop words, and quotations of the prompt, a response or the rubric, say nothing. The same remark counts once, even
    with other digits, letters and stop words, and so does a text that is repeated between quotations. Stop words
    between quotations ("no", "yes") count for two responses at most, and not at all after a whole response. The result
    is 0 if the analysis shares no words with the item, or if it is in another script and in no known language.
    """
    texts = " ".join((item.prompt, *item.responses))
    remarks = [" ".join(_words(remark)) for remark in _remarks(analysis or "", len(item.responses))]
    quotable = f"{texts} {rubric_text(rubric)}" if rubric else texts
    quoted, words = _grams(quotable, language), frozenset(_words(quotable))
    item_words = frozenset(_words(texts))
    weighing = [
        remark
        for remark in remarks
        if _content(remark, language)
        and not _grams(remark, language) <= quoted
        and not any(_repeats(remark, response, language) for response in item.responses)
    ]
    distinct: dict[frozenset[str], set[frozenset[str]]] = defaultdict(set)  # unquoted words -> their remarks
    short = set[str]()  # stop words outside of quotations
    for remark in weighing:
        unquoted = " ".join(word for word in remark.split() if word not in words)
        if gist := _content_set(unquoted, language):
            distinct[gist].add(_content_set(remark, language))
        elif unquoted or (item_words.issuperset(remark.split()) and _copied(remark, [texts], language) < _COPIED):
            short.add(" ".join(word for word in unquoted.split() if _size(word) > 1))
    differ = len(distinct) + len(short) > 1
    apart = sum(len(gist) if differ else 1 for gist in distinct.values()) + min(2, len(short))
    content = [word for remark in weighing for word in _content(remark, language)]
    size = _WORD_PIECE.get(_writing(language), 4)
    linked = not _pieces(content, size).isdisjoint(_pieces(_words(f"{texts} {culture_name(item.culture)}"), size))
    if _letter_kinds("".join(content)).isdisjoint(_letter_kinds(texts)):
        written = [word for remark in weighing for word in remark.split()]
        linked = sum(word in _known_words(language) for word in written) >= _KNOWN * len(written)
    return apart / len(item.responses) if linked else 0.0


def _copied(text: str, sources: Iterable[str], language: str) -> float:
    """Return the share of a text's letters in long pieces that occur in a source, read in either direction."""
    joint = "" if _writing(language) in _SPACELESS else " "
    whole, size = joint.join(_words(text)), _LONG_PIECE.get(_writing(language), 9)
    held = "\n".join(joint.join(_words(source)) for source in sources)
    held += held[::-1]
    covered = [False] * len(whole)
    for start in range(len(whole) - size + 1):
        if whole[start : start + size] in held:
            covered[start : start + size] = [True] * size
    return sum(covered) / max(1, len(whole))


def _repeats(remark: str, response: str, language: str) -> bool:
    """Return whether a remark repeats a response, in either direction, and adds only stop words and letters."""
    grams, ways = _grams(remark, language), [" ".join(_words(text)) for text in (response, response[::-1])]
    held = " ".join(ways).split()
    added = [word for word in remark.split() if word not in held and _size("".join({*word})) >= _WORD]
    return not _content_set(" ".join(added), language) and any(
        len(grams & _grams(way, language)) >= _QUOTED * len(grams) for way in ways
    )


def used_share(rubric: Rubric, analysis: str, item: Item, language: str) -> float:
    """Return the share of the criteria of which an analysis mentions the name or the description: half of its words.

    Words are compared by their beginnings, in any form (Arabic: without the article, after any prefix); in scripts
    without spaces half of the name has to occur in one piece. Quotations of the item are ignored. `language` is that of
    the rubric.
    """
    text = f" {' '.join(_words(analysis))} "
    for quoted in (item.prompt, *item.responses):
        text = text.replace(" ".join(_words(quoted)), " ")
    parts = [(criterion.name, criterion.description) for criterion in rubric.criteria]
    return sum(any(_mentions(text, part, language) for part in both) for both in parts) / len(parts)


def _mentions(text: str, phrase: str, language: str) -> bool:
    words = _words(phrase[:_PHRASE])
    writing = _writing(language)
    size = _WORD_PIECE.get(writing, 4)
    if writing in _SPACELESS:
        whole, spaceless = "".join(words), text.replace(" ", "")
        half = max(min(size, len(whole)), -(-len(whole) // 2))
        return half > 0 and any(whole[i : i + half] in spaceless for i in range(len(whole) - half + 1))
    stems = [_stem(word, size, writing) for word in _content(phrase[:_PHRASE], language) or words]
    return bool(stems) and 2 * sum(stem in text for stem in stems) >= len(stems)


def _stem(word: str, size: int, writing: str) -> str:
    """Return the text to search for: a short word between spaces, or the beginning of a longer one."""
    if writing == "Arab":  # prefixes are written together with their word
        bare = word.removeprefix("ال")
        return bare[: max(3, -(-6 * len(bare) // 10))]
    return f" {word} " if len(word) < size else f" {word[: max(size, -(-6 * len(word) // 10))]}"


def rubric_text(rubric: Rubric) -> str:
    """Return the names and descriptions of a rubric."""
    return " ".join(f"{criterion.name} {criterion.description}" for criterion in rubric.criteria)


def language_of(text: str, item: Item) -> str:
    """Return the language of a text about an item: the item's, or English if its letters are Latin instead."""
    if not _writing(item.language):
        return item.language
    letters = [character for character in text if character.isalpha()]
    latin = sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
    return "en" if "LATIN" not in scripts(item.language) and 2 * latin > len(letters) else item.language


def judges_nothing(judgement: Judgement, item: Item) -> bool:
    """Return whether a completion has no verdict, no criterion that says something, or weighs no response."""
    if judgement.verdict is None or judgement.rubric is None:
        return True
    rubric, analysis = judgement.rubric, judgement.analysis or ""
    says = criteria_share(rubric, item, language_of(rubric_text(rubric), item))
    return not (says and weighed_share(analysis, item, language_of(analysis, item), rubric))


def script_share(rubric: Rubric, language: str) -> float:
    """Return the share of a rubric's letters in the script of a language (which German and English share)."""
    expected = scripts(language)
    letters = [character for character in rubric_text(rubric) if character.isalpha()]
    return sum(unicodedata.name(letter, "").startswith(expected) for letter in letters) / max(1, len(letters))


@cache
def scripts(language: str) -> tuple[str, ...]:
    """Return the prefixes of the Unicode names of a language's letters."""
    code = script(language)
    return _SCRIPTS.get(code) or (Locale("en").scripts[code].upper().split()[0],)


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


def check_languages(items: Iterable[Item]) -> None:
    """Raise a DataError for an item in a language whose script is unknown."""
    for item in items:
        try:
            scripts(item.language)
        except DataError as error:
            raise DataError(f"item {item.id!r}: {error}; or set prompt.rubric_language=any") from None


def fold(text: str) -> str:
    """Return a text in lower case with single spaces."""
    folded = text.casefold()
    # Of printable characters only the space is blank, so most texts are already as they should be.
    is_single_spaced = folded.isprintable() and "  " not in folded and folded[:1] != " " != folded[-1:]
    return folded if is_single_spaced else " ".join(folded.split())


def _names_response(line: str, labels: str) -> bool:
    if any(f"{name}>" in line.casefold() for name in SECTIONS):
        return True
    for word in _words(line):
        doubled = len(word) > 1 and len(set(word)) == 1
        if (word[0] if doubled else _SPELLED.get(word, " ")).upper() in labels:
            return True
    return any(_names_label(line, index, labels) for index in range(len(line)))


def _names_label(line: str, index: int, labels: str) -> bool:
    """Return whether a character is a label, rather than a word or a part of one."""
    character = line[index]
    letter = _latin(character)
    if not letter or letter.upper() not in labels:
        return False
    before, after = index - 1, index + 1
    while before >= 0 and line[before].isdigit():
        before -= 1
    while after < len(line) and (line[after].isdigit() or unicodedata.category(line[after])[0] == "M"):
        after += 1
    left, rest = line[before] if before >= 0 else " ", line[after:][:3]
    if _joins(rest[:1] or " ") or (_joins(left) and not (left.islower() and letter.isupper())):  # "responseB" is one
        return False
    if letter.islower() and (left in _APOSTROPHES or (rest[:1] in _APOSTROPHES and rest[1:2].isalpha())):
        return rest[1:2] == "s" and not rest[2:].isalpha()  # French "d'un", English "I'd"; but "b's"
    is_word = character.lower() in _ONE_LETTER_WORDS and rest[:1].isspace() and rest[1:2].isalpha()
    is_word = is_word and not _RESPONSE.search(line[max(0, before + 1 - _NAME) : before + 1])
    begins = line[: before + 1].rstrip()[-1:] in ("", *"|.!?…")
    return not (is_word and (letter.islower() or (begins and not character.isascii())))


@lru_cache(4096)
def _latin(character: str) -> str:
    """Return the Latin letter that a character is, contains or looks like; empty if there is none."""
    if character.isascii():
        return character if character.isalpha() else ""
    if found := _lookalikes().get(character):
        return found
    plain = [c for c in unicodedata.normalize("NFKD", character) if c.isascii() and c.isalpha()]
    if len(plain) == 1:
        return plain[0]
    named = _LATIN_NAME.search(unicodedata.name(character, ""))
    return named[1] if named else ""


@cache
def _lookalikes() -> dict[str, str]:
    """Return the characters that Unicode lists as confusable with a label, in either case."""
    from confusable_homoglyphs.confusables import is_confusable  # loads its table

    found: dict[str, str] = {}
    for shape in (*LABELS.lower(), *LABELS):
        for entry in is_confusable(shape, greedy=True) or ():
            for other in (homoglyph["c"] for homoglyph in entry["homoglyphs"] if len(homoglyph["c"]) == 1):
                found |= {other.lower(): shape.lower(), other: shape} if shape.isupper() else {other: shape}
    return found


def _joins(neighbour: str) -> bool:
    """Return whether a character belongs to the word of a neighbouring letter; never in scripts without case."""
    return neighbour.isdigit() or neighbour.lower() != neighbour.upper() or unicodedata.combining(neighbour) > 0


def _remarks(analysis: str, num_responses: int) -> list[str]:
    """Return the text about each response: from its label up to the next one."""
    remarks = dict.fromkeys(LABELS[:num_responses], "")
    current, start = "", 0
    for index, character in enumerate(analysis):
        around = analysis[max(0, index - 1) : index] + analysis[index + 1 : index + 2]
        if character in remarks and not any(map(_joins, around)):
            text = analysis[start:index]
            if not current or any(c.isalpha() for c in text):  # else an article directly after a label: "B: A bow"
                remarks |= {current: f"{remarks[current]} {text}"} if current else {}
                current, start = character, index + 1
    if current:
        remarks[current] += f" {analysis[start:]}"
    return list(remarks.values())


@lru_cache(256)
def _content(text: str, language: str) -> tuple[str, ...]:
    """Return the content words of a text; in scripts without spaces all words, if any is one."""
    words, stop = _words(text), _stop_words(language)
    if _writing(language) in _SPACELESS:
        rest = _stop_words_pattern(language).sub("", "".join(words)) if stop else "".join(words)
        return words if _size(rest) >= _WORD else ()
    many = (word for word in words if word not in stop and (len({*word}) > 1 or word > "\u3040"))  # but not "aaa"
    return tuple(word for word in many if _size(word) >= _WORD)


@lru_cache(256)
def _content_set(text: str, language: str) -> frozenset[str]:
    """Return the content of a remark as a set, to compare remarks: words, or letters in scripts without spaces."""
    words = _content(text, language)
    if _writing(language) not in _SPACELESS:
        return frozenset(word for word in words if not _joined_stop_words(language).fullmatch(word))
    return frozenset(filter(str.isalpha, _stop_words_pattern(language).sub("", "".join(words))))


def _writing(language: str) -> str:
    """Return the script of a language, or "" if it is unknown: then words are separated by spaces."""
    try:
        return script(language)
    except DataError:
        return ""


@cache
def _stop_words_pattern(language: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(_stop_words(language), key=len, reverse=True))))


@cache
def _known_words(language: str) -> frozenset[str]:
    """Return the stop words of a language, and the words in its names of countries and languages."""
    try:
        names = Locale.parse(language, sep="-")
    except (UnknownLocaleError, ValueError):
        return _stop_words(language)
    named = [*names.territories.values(), *names.languages.values()]
    return _stop_words(language) | {word for name in named for word in _words(name)}


@cache
def _joined_stop_words(language: str) -> re.Pattern[str]:
    """Return a pattern of two or more stop words written as one; in Latin script only words of three letters."""
    least = 3 if _writing(language) == "Latn" else 2
    words = sorted((word for word in _stop_words(language) if _size(word) >= least), key=len, reverse=True)
    return re.compile(f"(?:{'|'.join(map(re.escape, words))}){{2,}}" if words else "(?!)")


@cache
def _stop_words(language: str) -> frozenset[str]:
    import stopwordsiso  # loads the words of all languages

    return frozenset(word.casefold() for word in stopwordsiso.stopwords(language.partition("-")[0]))


def _size(text: str) -> int:
    """Return the number of letters and vowel signs; an ideograph or kana counts as three, a Hangul syllable as two."""
    return sum(map(_SIZES.__getitem__, text))


def _letter_kinds(text: str) -> set[str]:
    return {unicodedata.name(c, "").partition(" ")[0] for c in text if c.isalpha()}


class _Sizes(dict[str, int]):
    """What each character counts as; looked up once, and few texts have rare ones."""

    def __missing__(self, c: str) -> int:
        size = 0
        if c.isalpha() or "VOWEL SIGN" in unicodedata.name(c, ""):  # a letter in Hindi, but a mark in Unicode
            size = 2 if "\uac00" <= c <= "\ud7a3" else 3 if "\u3040" <= c <= "\ud7ff" or c > "\uffff" else 1
        if ord(c) <= _BASIC_PLANE:  # so that no text fills the memory
            self[c] = size
        return size


class _Characters(dict[int, int | str | None]):
    """What `str.translate` makes of each character in words; looked up once as well."""

    def __missing__(self, code: int) -> int | str | None:
        # Letters, marks (vowels in Thai or Hindi) and numbers; invisible characters do not separate words.
        kind = unicodedata.category(chr(code))
        found = code if kind[0] in "LMN" else None if kind == "Cf" else " "
        if code <= _BASIC_PLANE:
            self[code] = found
        return found


_SIZES, _CHARACTERS = _Sizes(), _Characters()


@lru_cache(256)  # the texts of an item, and parts of a completion, are looked at many times
def _words(text: str) -> tuple[str, ...]:
    return tuple(_composed(text).casefold().translate(_CHARACTERS).split())


def _composed(text: str) -> str:
    """Return a text in NFKC; in parts, since only marks in a row take quadratic time."""
    return "".join(unicodedata.normalize("NFKC", text[i : i + 500]) for i in range(0, len(text), 500))


@lru_cache(64)
def _grams(text: str, language: str) -> frozenset[str]:
    return _pieces([("" if _writing(language) in _SPACELESS else " ").join(_words(text))], _GRAM)


def _pieces(texts: Iterable[str], size: int) -> frozenset[str]:
    return frozenset(text[i : i + size] for text in texts for i in range(max(1, len(text) - size + 1)))

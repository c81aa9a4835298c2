"""The instructions for a model that edits an item for a probe, and the rules that an edit must follow.

    CC  only the best response changes, to another concept; most of its words stay, and the countries it names
    RC  names of the culture are cut from prompt and responses; texts that do not name it stay as they are
    CL  the responses are in another language; the prompt stays
    RP  prompt and responses are in other words of their language

Numbers in digits (except in CC), links, line breaks, lists and bold text stay, and no text becomes much longer or
shorter; CL and RP keep the countries that are named. The meaning is not checked: read a sample of the edits.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from babel.languages import get_official_languages

from think_as_locals.data.edits import Edit
from think_as_locals.data.languages import count_names, countries_named, in_script, other_language
from think_as_locals.data.sources import response_language
from think_as_locals.types import Item, is_text

EDIT_RULES = {
    "complete": "the answer is complete, not cut off",
    "format": "it is one JSON object with the requested texts",
    "changed": "the edited texts have changed",
    "distinct": "no two responses are the same text",
    "name_removed": "no known name of the culture is left",
    "rest_kept": "the other words stay as they were",
    "language": "every text is in the required language",
    "numbers": "the same numbers are written in digits",
    "places": "the same countries are named, and the culture in the same texts",
    "structure": "links, line breaks, lists and bold text are the same",
    "length": "no text is much longer or shorter",
}
"""The rules for an edit, in the order in which they are checked; without the first two it cannot be read."""

_SPACELESS = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff]")  # Thai, kana, Han
_WORD = re.compile(rf"{_SPACELESS.pattern}|(?:(?!{_SPACELESS.pattern})[^\W_])+")
_CHARACTERS = 4  # that count as a word in scripts without spaces
_SEPARATED = re.compile("(?<=\\d)[.,'’\u00a0\u202f](?=\\d)")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s", re.MULTILINE)
_LINK = re.compile(r"https?://[^\s<>()\[\]]+")
_SIZES = ((re.compile("[\u4e00-\u9fff]"), 3), (re.compile("[\u3040-\u30ff\uac00-\ud7af]"), 2))
_SLACK = 20  # letters by which a text may always become longer or shorter
_FACTOR = {"CL": 3.0}  # no translation among the 9,900 sentences of the cards is beyond it
_SAME_LANGUAGE = 2.0
_PER_NAME = 4  # words removed or added with each name of the culture
_CONCEPT_WORDS, _CONCEPT_SHARE = 8, 1 / 3  # CC may change so many words of the best response, whichever is more
_MUST_DIFFER = 5  # words; RP need not rephrase shorter responses


class Texts(NamedTuple):
    """The texts of an item that an edit may change."""

    prompt: str
    responses: tuple[str, ...]


def target_language(item: Item, language: str) -> str | None:
    """Return the language into which CL puts an item's responses: `language`, or if they are in it the culture's."""
    spoken = response_language(item).partition("-")[0]
    if spoken != language:
        return language
    official = get_official_languages((item.culture or "").partition("-")[0], de_facto=True)
    tags = (tag.replace("_", "-") for tag in official)  # Babel writes `zh_Hant`
    return next((tag for tag in tags if tag.partition("-")[0] != spoken), None)


def skip_reason(probe: Edit, item: Item, language: str) -> str | None:
    """Return why a probe does not apply to an item, or `None`; `language` is the one in the settings."""
    if probe in ("CC", "RC") and item.culture is None:
        return "it has no culture"
    if probe == "RC" and not any(count_names(text, item.language, item.culture or "") for text in _texts(item)):
        return "no known name of the culture is in it"
    if probe == "CL" and target_language(item, language) is None:
        return f"its responses are in the language {language!r}, and no other is official in its culture"
    return None


def request_text(probe: Edit, item: Item, culture: str, language: str) -> str:
    """Return the request for an edit; `culture` and `language` are English names."""
    best = item.responses[item.best]
    materials: dict[Edit, dict[str, Any]] = {
        "CC": {"question": item.prompt, "culture": culture, "response": best},
        "RC": {"culture": culture, "prompt": item.prompt, "responses": item.responses},
        "CL": {"question": item.prompt, "responses": item.responses},
        "RP": {"prompt": item.prompt, "responses": item.responses},
    }
    written = json.dumps(materials[probe], ensure_ascii=False, indent=2)
    return Template(prompt_text(probe)).substitute(material=written, language=language)


@cache
def prompt_text(probe: Edit) -> str:
    """Return the instructions for a probe."""
    return files(__package__).joinpath("edit_prompts", f"{probe}.txt").read_text(encoding="utf-8").strip("\n")


def read_answer(probe: Edit, item: Item, answer: str) -> Texts | None:
    """Return the edited texts in an answer, a JSON object with any text around it; `None` if there is none."""
    try:
        found = json.loads(answer[answer.index("{") : answer.rindex("}") + 1], strict=False)
    except (ValueError, RecursionError):
        return None
    if probe == "CC":
        found["responses"] = [*item.responses]
        found["responses"][item.best] = found.get("response")
    prompt = found.get("prompt") if probe in ("RC", "RP") else item.prompt
    responses = found.get("responses")
    if not isinstance(responses, list) or len(responses) != len(item.responses):
        return None
    return Texts(prompt, tuple(responses)) if all(map(is_text, (prompt, *responses))) else None


def broken_rules(probe: Edit, item: Item, after: Texts, language: str | None) -> list[str]:
    """Return the rules that an edit breaks; `language` is the one that CL asked for."""
    pairs = list(zip(_texts(item), (after.prompt, *after.responses), strict=True))
    edited = [pair for pair in pairs if pair[0] != pair[1]]
    spoken = [(item.language, *pairs[0]), *((response_language(item), *pair) for pair in pairs[1:])]
    spoken = spoken[1:] if probe == "CL" else [each for each in spoken if each[1:] in edited]
    held = {
        "changed": _is_changed(probe, item, after),
        "distinct": len(set(after.responses)) == len(after.responses),
        "name_removed": probe != "RC" or not any(count_names(b, item.language, str(item.culture)) for _, b in pairs),
        "rest_kept": all(_changes_few_words(probe, item, *pair) for pair in edited),
        "language": all(_in_language(*each, language) for each in spoken),
        "numbers": probe == "CC" or all(_numbers(a) == _numbers(b) for a, b in edited),
        "places": probe == "RC" or all(_same_countries(item, a, b, language or item.language) for a, b in edited),
        "structure": all(_structure(a) == _structure(b) for a, b in edited),
        "length": all(_similar_length(a, b, _FACTOR.get(probe, _SAME_LANGUAGE)) for a, b in edited),
    }
    return [rule for rule in EDIT_RULES if not held.get(rule, True)]


def _texts(item: Item) -> tuple[str, ...]:
    return (item.prompt, *item.responses)


def _is_changed(probe: Edit, item: Item, after: Texts) -> bool:
    """Whether an edit changes words; for RP of the prompt and of each response that is not very short."""
    if probe != "RP":
        pairs = zip(_texts(item), (after.prompt, *after.responses), strict=True)
        return any(_words(a) != _words(b) for a, b in pairs)
    responses = zip(item.responses, after.responses, strict=True)
    long_ones = [(a, b) for a, b in responses if _count(_words(a)) >= _MUST_DIFFER]
    return all(_words(a) != _words(b) for a, b in [(item.prompt, after.prompt), *long_ones])


def _changes_few_words(probe: Edit, item: Item, before: str, after: str) -> bool:
    """Whether CC and RC change few enough words of a text."""
    if probe == "CC":
        most = max(_CONCEPT_WORDS, _CONCEPT_SHARE * _count(_words(before)))
    elif probe == "RC":
        most = _PER_NAME * count_names(before, item.language, str(item.culture))
    else:
        return True
    return _num_changed_words(before, after) <= most


def _num_changed_words(before: str, after: str) -> float:
    """Return the number of words removed or added, whichever is more."""
    gone, come = list[str](), list[str]()
    for old, new in _lines(before, after):
        for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag != "equal":
                gone += old[i:j]
                come += new[k:m]
    return max(_count(gone), _count(come))


def _lines(before: str, after: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of two texts line by line, or as a whole if they differ in their number of lines."""
    old, new = ([_words(line) for line in text.splitlines()] for text in (before, after))
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
    else:
        yield _words(before), _words(after)


def _words(text: str) -> list[str]:
    """Return the words of a text without case, in scripts without spaces its characters."""
    return _WORD.findall(unicodedata.normalize("NFC", text).casefold())


def _count(words: list[str]) -> float:
    return sum(1 / _CHARACTERS if _SPACELESS.match(word) else 1 for word in words)


def _in_language(spoken: str, before: str, after: str, language: str | None) -> bool:
    if language is not None:
        return other_language(after, language) is None and in_script(after, language)
    # A text that was in another language already may stay so.
    return other_language(after, spoken) in (None, other_language(before, spoken))


def _numbers(text: str) -> Counter[int]:
    """Return the numbers in digits, without separators of thousands and decimals."""
    return Counter(int(digits) for digits in re.findall(r"\d{1,1000}", _SEPARATED.sub("", text)))


def _same_countries(item: Item, before: str, after: str, language: str) -> bool:
    """Whether two texts can name the same countries and, in one language, both or neither name the item's culture."""
    sides = [(before, item.language), (after, language)]
    for (one, spoken), (other, tongue) in (sides, sides[::-1]):
        if not all(count_names(other, tongue, code) for code in countries_named(one, spoken)):
            return False
    if item.culture is None or item.language != language:  # another language may name the people differently
        return True
    first, second = (bool(count_names(text, spoken, item.culture)) for text, spoken in sides)
    return first == second


def _structure(text: str) -> tuple[Any, ...]:
    lines = sum(bool(line.strip()) for line in text.splitlines())
    return lines, len(_BULLET.findall(text)), text.count("**"), text.count("```"), sorted(_LINK.findall(text))


def _similar_length(before: str, after: str, factor: float) -> bool:
    shorter, longer = sorted(map(_size, (before, after)))
    return longer <= factor * shorter + _SLACK


def _size(text: str) -> int:
    """Return the length of a text in letters; syllables (kana, Hangul) count twice, ideographs three times."""
    return len(text) + sum((weight - 1) * len(letters.findall(text)) for letters, weight in _SIZES)

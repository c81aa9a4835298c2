"""Measures of a judgement that need no model: the part that `criteria_gain` scores, and the quality of its rubric.

A pure function cannot tell a true criterion from a false one, nor a word from an invented one, and it is easily
satisfied. What leads to good rubrics is `criteria_gain`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from think_as_locals.judging.formats import SECTIONS, without_thinking
from think_as_locals.runtime import scripts
from think_as_locals.types import LABELS, DataError, Item, Judgement, Rubric

_GRAM = 3  # letters: suits scripts with and without spaces between words
_OVERLAP = 0.5  # share of trigrams in an earlier criterion from which a criterion repeats it
_OPENING, _CLOSING = "<rubric>", "</rubric>"


def rubric_span(judgement: Judgement, num_responses: int) -> str | None:
    """Return the part of a completion that `criteria_gain` may score: through `</rubric>`, without thoughts before it.

    It ends before the first line that names a response: that contains a tag of the grammar, or a label as a word of its
    own (also the article "A"). Other names (a lower-case letter, "the second one", a code of the policy's own) are not
    detected; with `reward.both_orders` they earn nothing, as the gain is the smaller one of both orders.

    Returns `None` if there is no parsed rubric, text before it, or a response named in the first criterion.
    """
    if (text := without_thinking(judgement.completion)) != judgement.completion:
        text = text.lstrip()
    start = text.find(_OPENING)
    if judgement.rubric is None or text[:start].strip():
        return None
    end, has_criterion = start + len(_OPENING), False
    stop = text.find(_CLOSING)
    for line in text[end:stop].split("\n"):
        # One by one, as long runs of combining marks take quadratic time.
        plain = "".join(c if c.isascii() else unicodedata.normalize("NFKC", c) for c in line)
        tagged = any(f"{name}>" in plain.casefold() for name in SECTIONS)
        if tagged or any(c in LABELS[:num_responses] and _stands_alone(plain, i) for i, c in enumerate(plain)):
            return text[:end] if has_criterion else None
        end += len(line) + 1
        has_criterion |= bool(line.strip())
    return text[: stop + len(_CLOSING)]


def distinct_share(rubric: Rubric) -> float:
    """Return the share of the criteria that do not repeat an earlier one: half of the trigrams of their letters."""
    kept: list[set[str]] = []
    for criterion in rubric.criteria:
        text = _letters(f"{criterion.name} {criterion.description}")
        grams = {text[i : i + _GRAM] for i in range(len(text) - _GRAM + 1)}
        if grams and all(len(grams & old) < _OVERLAP * min(len(grams), len(old)) for old in kept):
            kept.append(grams)
    return len(kept) / len(rubric.criteria)


def weighed_share(analysis: str | None, responses: Sequence[str]) -> float:
    """Return the share of the responses about which an analysis says something of its own after their labels.

    A part of the response itself is nothing of its own, and the same text about several responses counts once.
    """
    remarks = map(_letters, _remarks(analysis or "", len(responses)))
    own = {remark for remark, text in zip(remarks, responses, strict=True) if remark and remark not in _letters(text)}
    return len(own) / len(responses)


def script_share(rubric: Rubric, language: str) -> float:
    """Return the share of a rubric's letters in the script of a language (which German and English share)."""
    text = "".join(criterion.name + criterion.description for criterion in rubric.criteria)
    return scripts.script_share(text, language) if any(map(str.isalpha, text)) else 0.0


def is_degenerate(judgement: Judgement, responses: Sequence[str]) -> bool:
    """Return whether a completion judges nothing: it has no verdict or no rubric, or weighs no response."""
    return judgement.verdict is None or judgement.rubric is None or not weighed_share(judgement.analysis, responses)


def check_languages(items: Iterable[Item]) -> None:
    """Raise a DataError for an item in a language whose script is unknown."""
    for item in items:
        try:
            scripts.script(item.language)
        except DataError as error:
            raise DataError(f"item {item.id!r}: {error}; or set prompt.rubric_language=any") from None


def _stands_alone(text: str, index: int) -> bool:
    """Return whether a letter is a word of its own; in scripts without case no neighbour joins it."""
    neighbours = text[max(0, index - 1) : index] + text[index + 1 : index + 2]
    return not any(c.isdigit() or c.lower() != c.upper() or unicodedata.combining(c) for c in neighbours)


def _remarks(analysis: str, num_responses: int) -> list[str]:
    """Return the text about each response: from its label up to the next one."""
    remarks = dict.fromkeys(LABELS[:num_responses], "")
    current, start = "", 0
    for index, character in enumerate(analysis):
        if character in remarks and _stands_alone(analysis, index):
            text = analysis[start:index]
            if not current or any(c.isalpha() for c in text):  # else an article directly after a label: "B: A bow"
                remarks |= {current: f"{remarks[current]} {text}"} if current else {}
                current, start = character, index + 1
    if current:
        remarks[current] += f" {analysis[start:]}"
    return list(remarks.values())


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))

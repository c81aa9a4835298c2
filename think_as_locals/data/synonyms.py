"""Decide whether two short English answers can both be right: by words, by annotators' alternatives, by a table.

`synonyms.json` was written for this project: everyday synonyms (British and American ones first), and kinds of things,
where the general answer holds wherever a specific one does.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path

_FILLER = re.compile("a|an|and|at|by|for|from|go|going|in|is|it|of|on|or|the|their|they|to|with")
_POSSESSIVE = re.compile(r"['’]s?\b")
_ENDING = re.compile(r"(?<=[^\W\d_]{3})(?:ings?|ers?|ies|ism|ist|ed|e|y)$")
_Phrase = tuple[str, ...]  # the stems of its words


class Synonyms:
    """Marks of meanings: two answers that share a mark can both be right."""

    def __init__(self, answered: Iterable[Sequence[Sequence[str]]]) -> None:
        """Learn synonyms from answers, each a list of spellings, grouped by region and question.

        Two phrases are synonyms if they are spellings of one answer more often than they are different answers.
        """
        one: Counter[tuple[_Phrase, ...]] = Counter()
        two: Counter[tuple[_Phrase, ...]] = Counter()
        for answers in answered:
            spelled = [{phrase for text in spellings if (phrase := _phrase(text))} for spellings in answers]
            one.update(pair for phrases in spelled for pair in combinations(sorted(phrases), 2))
            pairs = (pair for a, b in combinations(spelled, 2) for pair in product(a, b))
            two.update({(min(pair), max(pair)) for pair in pairs})
        self._learned: dict[_Phrase, set[str]] = defaultdict(set)
        for pair, count in one.items():
            if count > two[pair]:
                for phrase in pair:
                    self._learned[phrase].add(str(pair))

    def marks(self, text: str) -> frozenset[str]:
        """Return the marks of an answer: the stems of its words, and all that it is a synonym or a kind of."""
        phrase, (same, special, general) = _phrase(text), _table()
        parts = [phrase[i:j] for i in range(len(phrase)) for j in range(i + 1, len(phrase) + 1)]
        found = (names.get(part, ()) for names in (same, special) for part in parts)
        initials = "".join(word[0] for word in re.findall(r"\w+", text.lower()))
        return frozenset({initials, *phrase} if len(initials) > 2 else phrase).union(
            *found, general.get(phrase, ()), self._learned.get(phrase, ())
        )


@cache
def _phrase(text: str) -> _Phrase:
    """Return the stems of the words, without filler words."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    return tuple(_stem(w) for w in re.findall(r"\w+", _POSSESSIVE.sub("", plain)) if not _FILLER.fullmatch(w))


def _stem(word: str) -> str:
    """Remove endings: `run` for `running` and `runners`, `bus` for `buses`; the result need not be a word."""
    stem = word if len(word) < 4 or word.endswith("ss") else word.removesuffix("s")
    stem = _ENDING.sub("", _ENDING.sub("", stem))
    return stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] else stem


@cache
def _table() -> tuple[dict[_Phrase, set[str]], ...]:
    """Return the marks of synonyms and special things by a part of an answer, and of general ones by all of it."""
    table = json.loads(Path(__file__).with_name("synonyms.json").read_text(encoding="utf-8"))
    same, special, general = (defaultdict[_Phrase, set[str]](set) for _ in range(3))
    for number, synonyms in enumerate(table["same"]):
        for text in synonyms:
            same[_phrase(text)].add(f"same {number}")
    for kind, members in table["kinds"].items():
        for text in members:
            special[_phrase(text)].add(f"{kind}: {text}")
            general[_phrase(kind)].add(f"{kind}: {text}")
    return same, special, general

"""Baselines: the credit for the same items without judging, by name in `CREDITS`."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial

import numpy as np
from babel import Locale, UnknownLocaleError
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from think_as_locals.evaluation.scored import in_text_order
from think_as_locals.judging.rubric import fold
from think_as_locals.reward_models.reward_model import tie_credit
from think_as_locals.types import Item

Trait = Callable[[Item, str], float]

_FOLDS = 5
_MOST_FITTED = 200_000  # responses that a model of words is fitted to; a sample of more
_WORDS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]"
"""A character of a script without spaces between words (Thai to Khmer, kana, Han), a word, or punctuation."""

_WORD_START = r"(?<![a-z\u00df-\u052f])"  # only Latin, Greek and Cyrillic have spaces before names


def label_match(item: Item, response: str) -> float:
    """Return 1 for a response that names the culture, in English or in the item's language, else 0."""
    names = _names(item.culture, item.language)
    return float(names is not None and names.search(response.casefold()) is not None)


TRAITS: Mapping[str, Trait] = {
    "longest": lambda _item, response: len(response),  # in characters
    "shortest": lambda _item, response: -len(response),
    "label_match": label_match,
}


def trait_scores(items: Sequence[Item], trait: Trait) -> list[float]:
    """Return the credit of preferring a trait: 1/k if the best response is among the k with most of it, else 0."""
    return [tie_credit([trait(item, response) for response in item.responses], item.best) for item in items]


def chance(items: Sequence[Item]) -> list[float]:
    """Return the credit of a blind choice: 1/N."""
    return [1 / len(item.responses) for item in items]


def majority_answer(items: Sequence[Item]) -> list[float]:
    """Return the credit of preferring the text that is most often right in other question groups ("Yes", "3")."""
    right: Counter[str] = Counter()
    own: dict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        answer = fold(item.responses[item.best])
        right[answer] += 1
        own[item.group][answer] += 1
    return [
        tie_credit([right[text] - own[item.group][text] for text in map(fold, item.responses)], item.best)
        for item in items
    ]


def tfidf(items: Sequence[Item]) -> list[float]:
    """Return the credit of a classifier that sees single responses, and neither the question nor the culture.

    It is logistic regression on TF-IDF of words and punctuation, a test for annotation artefacts (Gururangan et al.
    2018, arXiv 1803.02324). Each question group is scored by a model of the others; with a single group it is chance.
    """
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    ordered = sorted(items, key=lambda item: item.id)  # so that the given order does not matter
    numbers = {name: number for number, name in enumerate(sorted({item.group for item in items}))}
    folds = min(_FOLDS, len(numbers))
    if folds < 2:
        return chance(items)
    groups = np.array([numbers[item.group] for item in ordered for _ in item.responses])
    right = np.array([i == item.best for item in ordered for i in range(len(item.responses))])
    counts = _WordCounts(text for item in ordered for text in item.responses)
    scores, rng = np.empty(len(right)), np.random.default_rng(0)
    for train, test in GroupKFold(folds).split(right, groups=groups):
        # A word that occurs only in the tested group has no weight.
        chosen = train if len(train) <= _MOST_FITTED else np.sort(rng.choice(train, _MOST_FITTED, replace=False))
        weights, fitted = TfidfTransformer(sublinear_tf=True), counts.of(chosen)
        weights.fit(fitted)
        model = LogisticRegression(class_weight="balanced").fit(weights.transform(fitted, copy=False), right[chosen])
        for some in np.array_split(test, math.ceil(len(test) / _MOST_FITTED)):
            scores[some] = model.decision_function(weights.transform(counts.of(some), copy=False))
    ends = np.cumsum([len(item.responses) for item in ordered])
    by_item = zip(ordered, np.split(scores, ends[:-1]), strict=True)
    worth = {item.id: tie_credit(values.tolist(), item.best) for item, values in by_item}
    return [worth[item.id] for item in items]


class _WordCounts:
    """How often each text has each word, as scikit-learn's CountVectorizer counts, in a third of its time."""

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = defaultdict(lambda: len(numbers))
        words, ends, find = array("i"), [0], re.compile(_WORDS).findall
        for text in texts:
            words.extend(map(numbers.__getitem__, find(text.lower())))
            ends.append(len(words))
        self._words, self._ends = np.frombuffer(words, np.int32), np.array(ends)
        self._column = np.empty(len(numbers), np.int32)  # of each word: they stand in alphabetical order
        self._column[[numbers[word] for word in sorted(numbers)]] = np.arange(len(numbers))

    def of(self, places: NDArray[np.intp]) -> csr_matrix:
        """Return the counts of some of the texts, a row each."""
        starts, ends = self._ends[places], self._ends[places + 1]
        rows = np.concatenate([[0], np.cumsum(ends - starts)])
        words = self._words[np.arange(rows[-1]) + np.repeat(starts - rows[:-1], ends - starts)]
        shape = len(places), len(self._column)
        counts = csr_matrix((np.ones(len(words)), self._column[words], rows), shape)
        counts.sum_duplicates()
        return counts


CREDITS: Mapping[str, Callable[[Sequence[Item]], list[float]]] = {
    "chance": chance,
    **{name: partial(trait_scores, trait=trait) for name, trait in TRAITS.items()},
    "majority_answer": majority_answer,
    "tfidf": tfidf,
}
"""Baselines by name: items -> the credit of each, in their order."""

NAMES: Mapping[str, str] = {
    "chance": "chance",
    "longest": "always the longest response",
    "shortest": "always the shortest response",
    "label_match": "a response that names the culture",
    "majority_answer": "the answer most often right elsewhere",
    "tfidf": "TF-IDF of the response alone",
}
"""What tables call them."""


def baseline_credits(items: Iterable[Item]) -> dict[str, dict[str, float]]:
    """Return credits by baseline and item id, whatever the order of each item's responses.

    The last ones are cached, for the next reward model over the same items and for the leaderboard.
    """
    return _credits(tuple(map(in_text_order, items)))


@lru_cache(maxsize=1)
def _credits(items: tuple[Item, ...]) -> dict[str, dict[str, float]]:
    ids = [item.id for item in items]
    return {name: dict(zip(ids, credit(items), strict=True)) for name, credit in CREDITS.items()}


@lru_cache(maxsize=1024)
def _names(culture: str | None, language: str) -> re.Pattern[str] | None:
    """Return a pattern of a culture's names in case-folded text: it is in "an Egyptian", Oman's is not in "woman"."""
    if culture is None:
        return None
    names = {Locale("en").territories.get(culture, culture)}
    with suppress(UnknownLocaleError, ValueError):  # if CLDR does not know the language, only the English name is used
        names.add(Locale.parse(language, sep="-").territories.get(culture, culture))
    return re.compile(rf"{_WORD_START}(?:{'|'.join(re.escape(name.casefold()) for name in sorted(names))})")

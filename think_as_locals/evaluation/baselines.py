"""Baselines: the credit for the same items without judging, by name in `CREDITS`."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, compress, islice

import numpy as np
from babel import Locale, UnknownLocaleError
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from think_as_locals.judging.prompt import culture_name
from think_as_locals.runtime.processes import cores, in_processes
from think_as_locals.types import Item

Trait = Callable[[Item, str], float]

_FOLDS = 5
_CHUNK = 50_000  # texts whose words a process counts, and that a model scores, at once
_MAX_FITTED = 200_000  # responses that a model of words is fitted to; a sample of more
_WORDS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]"
"""A character of a script without spaces between words (Thai to Khmer, kana, Han), a word, or punctuation."""

_WORD_START = r"(?<![a-z\u00df-\u052f])"  # only Latin, Greek and Cyrillic have spaces before names


def label_match(item: Item, response: str) -> float:
    """Return 1 for a response that names the culture, in English or in the item's language, else 0."""
    names, pattern = _names(item.culture, item.language)
    folded = response.casefold()
    mentioned = any(name in folded for name in names)  # faster than the pattern, which also wants a word's start
    return float(mentioned and pattern.search(folded) is not None)


TRAITS: Mapping[str, Trait] = {
    "longest": lambda _item, response: len(response),  # in characters
    "shortest": lambda _item, response: -len(response),
    "label_match": label_match,
}


def trait_scores(items: Sequence[Item], trait: Trait) -> list[float]:
    """Return the credit of preferring a trait: 1/k if the best response is among the k with most of it, else 0."""
    return _credit_of(items, (trait(item, response) for item in items for response in item.responses))


def chance(items: Sequence[Item]) -> list[float]:
    """Return the credit of a blind choice: 1/N."""
    return [1 / len(item.responses) for item in items]


def majority_answer(items: Sequence[Item]) -> list[float]:
    """Return the credit of preferring the text that is most often right in other question groups ("Yes", "3")."""

    def texts() -> Iterator[tuple[str, bool, str]]:
        return ((item.group, i == item.best, text) for item in items for i, text in enumerate(item.responses))

    # Only a text that is there twice can be right elsewhere. A million free texts, of which hardly any is, would take a
    # gigabyte; their hashes do not.
    hashes = np.fromiter((hash(_folded(text)) for item in items for text in item.responses), np.int64)
    in_order = np.sort(hashes)
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    several = np.searchsorted(repeated, hashes, "right") > np.searchsorted(repeated, hashes)
    there = [(group, is_best, sys.intern(_folded(text))) for group, is_best, text in compress(texts(), several)]
    right = Counter(text for _, is_best, text in there if is_best)
    own = Counter((group, text) for group, is_best, text in there if is_best)
    scores = np.zeros(len(hashes))
    scores[several] = [right[text] - own[group, text] for group, _, text in there]
    return _credit_of(items, scores)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def tfidf(items: Sequence[Item]) -> list[float]:
    """Return the credit of a classifier that sees single responses, and neither the question nor the culture.

    It is logistic regression on TF-IDF of words and punctuation, a test for annotation artefacts (Gururangan et al.
    2018, arXiv 1803.02324). Each question group is scored by a model of the others; with a single group it is chance.
    """
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    # Sorted, so that the given order of items and of their responses does not matter.
    ordered = sorted(items, key=lambda item: item.id)
    numbers = {name: number for number, name in enumerate(sorted({item.group for item in items}))}
    folds = min(_FOLDS, len(numbers))
    if folds < 2:
        return chance(items)
    groups = np.repeat([numbers[item.group] for item in ordered], [len(item.responses) for item in ordered])
    right = np.array([text == item.responses[item.best] for item in ordered for text in sorted(item.responses)])
    counts = _WordCounts(text for item in ordered for text in sorted(item.responses))
    scores, rng, parts = np.empty(len(right)), np.random.default_rng(0), []
    for train, test in GroupKFold(folds).split(right, groups=groups):
        few = len(train) <= _MAX_FITTED
        parts.append((train if few else np.sort(rng.choice(train, _MAX_FITTED, replace=False)), test))
    del groups, numbers, train  # of a million items, hundreds of megabytes

    def score(chosen: NDArray[np.intp], test: NDArray[np.intp]) -> None:
        # A word that occurs only in the tested group has no weight.
        weights, fitted = TfidfTransformer(sublinear_tf=True), counts.of(chosen)
        weights.fit(fitted)
        model = LogisticRegression(class_weight="balanced").fit(weights.transform(fitted, copy=False), right[chosen])
        for some in np.array_split(test, math.ceil(len(test) / _CHUNK)):
            scores[some] = model.decision_function(weights.transform(counts.of(some), copy=False))

    with ThreadPoolExecutor(cores()) as threads:  # scipy and scikit-learn release the GIL
        list(threads.map(score, *zip(*parts, strict=True)))
    credit_of = dict(zip((item.id for item in ordered), _tie_credits(scores, right, ordered), strict=True))
    return [credit_of[item.id] for item in items]


def _credit_of(items: Sequence[Item], scores: Iterable[float]) -> list[float]:
    """Return the credit of preferring the response with the highest score, given the scores of all responses."""
    ends = np.cumsum([len(item.responses) for item in items])
    right = np.zeros(ends[-1], bool)
    right[ends - [len(item.responses) - item.best for item in items]] = True
    return _tie_credits(np.fromiter(scores, float), right, items)


def _tie_credits(scores: NDArray[np.float64], right: NDArray[np.bool_], items: Sequence[Item]) -> list[float]:
    """Return the `tie_credit` of each item, given the scores of all responses and which of them are right."""
    sizes = np.array([len(item.responses) for item in items])
    starts = np.cumsum(sizes) - sizes
    at_top = scores == np.repeat(np.maximum.reduceat(scores, starts), sizes)
    return list((at_top[right] / np.add.reduceat(at_top, starts, dtype=int)).tolist())


class _WordCounts:
    """How often each text has each word, as scikit-learn's CountVectorizer counts.

    It takes two thirds of the time (20,000 texts), and only the counts of some of the texts are a matrix at once.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        numbers: dict[str, int] = defaultdict(lambda: len(numbers))
        rest, words, lengths = iter(texts), array("i"), [np.zeros(1, np.int64)]  # the words grow in place
        chunks = iter(lambda: list(islice(rest, _CHUNK)), [])
        for _, (known, of_chunk, of_texts) in in_processes(_numbered, ((None, chunk) for chunk in chunks)):
            words.frombytes(np.array([numbers[word] for word in known], np.int32)[of_chunk].tobytes())
            lengths.append(of_texts)
        self._words, self._ends = np.frombuffer(words, np.int32), np.cumsum(np.concatenate(lengths))
        self._column = np.empty(len(numbers), np.int32)  # of each word: they stand in alphabetical order
        self._column[[numbers[word] for word in sorted(numbers)]] = np.arange(len(numbers))

    def of(self, indices: NDArray[np.intp]) -> csr_matrix:
        """Return the counts of some of the texts, a row each."""
        starts, ends = self._ends[indices], self._ends[indices + 1]
        parts = zip(starts.tolist(), ends.tolist(), strict=True)
        columns = self._column[np.concatenate([self._words[start:end] for start, end in parts])]
        rows, shape = np.concatenate([[0], np.cumsum(ends - starts)]), (len(indices), len(self._column))
        counts = csr_matrix((np.ones(len(columns)), columns, rows), shape)
        counts.sum_duplicates()
        return counts


def _numbered(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int32], NDArray[np.int64]]:
    """Return the distinct words of texts, the index among them of each word, and the number of words of each text.

    Words are found in what stands between spaces, of which few are distinct: a third of the time for whole texts.
    """
    import pyarrow as pa
    from pyarrow.compute import split_pattern

    split = split_pattern(pa.array([text.lower() for text in texts], pa.large_string()), " ")
    encoded = split.flatten().dictionary_encode()
    parts = list(map(re.compile(_WORDS).findall, encoded.dictionary.to_pylist()))
    numbers: dict[str, int] = defaultdict(lambda: len(numbers))
    words = np.fromiter(map(numbers.__getitem__, chain.from_iterable(parts)), np.int32)
    indices, sizes = encoded.indices.to_numpy(), np.fromiter(map(len, parts), np.int64, len(parts))
    starts, counts = (np.cumsum(sizes) - sizes)[indices], sizes[indices]
    ends = np.concatenate([[0], np.cumsum(counts)])
    found = words[np.arange(ends[-1]) + np.repeat(starts - ends[:-1], counts)]
    return list(numbers), found, np.diff(ends[split.offsets])


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


@lru_cache(maxsize=16)  # for the next reward model or checkpoint on the same set of items, and for the leaderboard
def baseline_credits(items: tuple[Item, ...]) -> dict[str, NDArray[np.float64]]:
    """Return the credit of each item by baseline, whatever the order of its responses."""
    # The largest part of `tfidf` releases the GIL; the others, which do not, would only take memory at the same time.
    names = list(CREDITS)[::-1]  # `tfidf`, the longest, first
    with ThreadPoolExecutor(2) as threads:
        found = dict(zip(names, threads.map(lambda name: np.array(CREDITS[name](items)), names), strict=True))
    return {name: found[name] for name in CREDITS}


@lru_cache(maxsize=1024)
def _names(culture: str | None, language: str) -> tuple[list[str], re.Pattern[str]]:
    """Return a culture's names, case-folded, and a pattern: it is in "an Egyptian", Oman's is not in "woman"."""
    names = set[str]()
    if culture is not None:
        names.add(culture_name(culture).partition(" (")[0])  # West Java (Indonesia), Myanmar (Burma)
        with suppress(UnknownLocaleError, ValueError):  # a language that CLDR does not know has only English names
            names.add(Locale.parse(language, sep="-").territories.get(culture, culture))
    folded = [name.casefold() for name in sorted(names)]
    return folded, re.compile(rf"{_WORD_START}(?:{'|'.join(map(re.escape, folded))})")

"""Baselines: the credit for the same items without judging, by name in `CREDITS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from think_as_locals.data.languages import count_names
from think_as_locals.evaluation.statistics import codes
from think_as_locals.reward_models.reward_model import tie_credit
from think_as_locals.types import Item

Trait = Callable[[Item, str], float]

_FOLDS = 5
_MAX_FITTED = 200_000  # responses that a model of words is fitted to; a sample of more
_WORDS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]"
"""A character of a script without spaces between words (Thai to Khmer, kana, Han), a word, or punctuation."""


def label_match(item: Item, response: str) -> float:
    """Return 1 for a response that names the culture or its people, see `count_names`, else 0."""
    return float(item.culture is not None and count_names(response, item.language, item.culture) > 0)


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
    folded = [[" ".join(text.casefold().split()) for text in item.responses] for item in items]
    right = Counter(texts[item.best] for item, texts in zip(items, folded, strict=True))
    own = Counter((item.group, texts[item.best]) for item, texts in zip(items, folded, strict=True))
    return [
        tie_credit([right[text] - own[item.group, text] for text in texts], item.best)
        for item, texts in zip(items, folded, strict=True)
    ]


def tfidf(items: Sequence[Item]) -> list[float]:
    """Return the credit of a classifier that sees single responses, and neither the question nor the culture.

    It is logistic regression on TF-IDF of words and punctuation, a test for annotation artefacts (Gururangan et al.
    2018, arXiv 1803.02324). Each question group is scored by a model of the others; with a single group it is chance.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline

    folds = min(_FOLDS, len({item.group for item in items}))
    if folds < 2:
        return chance(items)
    # Sorted, so that the given order of items and of their responses does not matter.
    ordered = sorted(items, key=lambda item: item.id)
    texts = np.array([text for item in ordered for text in sorted(item.responses)], dtype=object)
    right = np.array([text == item.responses[item.best] for item in ordered for text in sorted(item.responses)])
    groups = np.repeat([item.group for item in ordered], [len(item.responses) for item in ordered])
    scores, rng = np.empty(len(texts)), np.random.default_rng(0)
    for train, test in GroupKFold(folds).split(texts, groups=codes(groups.tolist())):
        chosen = train if len(train) <= _MAX_FITTED else np.sort(rng.choice(train, _MAX_FITTED, replace=False))
        words = TfidfVectorizer(token_pattern=_WORDS, sublinear_tf=True)
        model = make_pipeline(words, LogisticRegression(class_weight="balanced")).fit(texts[chosen], right[chosen])
        scores[test] = model.decision_function(texts[test])
    ends = np.cumsum([len(item.responses) for item in ordered])[:-1]
    parts = zip(ordered, np.split(scores, ends), np.split(right, ends), strict=True)
    credit_of = {item.id: tie_credit(found.tolist(), int(best.argmax())) for item, found, best in parts}
    return [credit_of[item.id] for item in items]


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
    return {name: np.array(credit(items)) for name, credit in CREDITS.items()}

"""How far a reward model's opinion is from a country's: GlobalOpinionQA's measure (arXiv 2306.16388)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax

from think_as_locals.data.opinions import OpinionQuestion, is_answer, others_mean
from think_as_locals.evaluation.journal import content_key
from think_as_locals.evaluation.response_scores import Scores
from think_as_locals.models.reward_model import Request
from think_as_locals.types import DataError, Item


def option_requests(questions: Sequence[OpinionQuestion]) -> list[Request]:
    """What has to be scored for `opinion_distances`: each answer to each question."""
    found = []
    for question in questions:
        answers = _answers(question)
        for place, answer in enumerate(answers):
            item = Item(
                id=f"globalopinionqa/{question.id}/{place}",
                prompt=question.question,
                responses=(answer, answers[place - 1]),  # an item has two responses; this one is asked about
                best=0,
                culture=None,
                language="en",
                domain=question.source.lower(),
                group=question.id,
                source="globalopinionqa",
            )
            found.append(Request(item, (0,)))
    return found


def opinion_distances(questions: Sequence[OpinionQuestion], country: str, scores: Scores | None) -> dict[int, float]:
    """Place of a question -> the distance of a reward model's softmax over its answers from their shares in a country.

    Options that are no answers are left out and shares scaled to sum to 1 (ours): no pair tells anything about them.

    Args:
        questions: Those that the country was not asked, or that have fewer than two answers, are left out.
        country: ISO 3166 code.
        scores: Of the answers; those that are missing were too long, and their question is left out. `None` takes the
            mean of all other countries in place of a reward model.
    """
    found = {}
    for place, question in enumerate(questions):
        answers = _answers(question)
        if country not in question.shares or not answers:
            continue
        shares = _shares_of(question, question.shares[country], answers)
        if scores is None:
            others = others_mean(question, country)
            guess = _shares_of(question, others, answers) if others else None
        else:
            worth = [scores.get(content_key(question.question, answer)) for answer in answers]
            guess = None if None in worth else softmax(np.array(worth, float)).tolist()
        if guess and sum(shares) and sum(guess):
            found[place] = js_distance(shares, guess)
    return found


def _answers(question: OpinionQuestion) -> list[str]:
    """Its options that are answers; none where there are fewer than two."""
    answers = [option for option in question.options if is_answer(option)]
    return answers if len(answers) > 1 else []


def _shares_of(question: OpinionQuestion, shares: Sequence[float], answers: Sequence[str]) -> list[float]:
    given = dict(zip(question.options, shares, strict=True))
    return [given[answer] for answer in answers]


def js_distance(p: Sequence[float], q: Sequence[float]) -> float:
    """Jensen-Shannon distance of two distributions over the same options: 0 where they are equal, 1 where disjoint.

    The square root of the divergence, with logarithms to the base 2 (ours: the paper names no base).

    Args:
        p: Shares of N options; they are scaled to sum to 1.
        q: Shares of the same options, in the same order.

    Raises:
        DataError: they are not as many, or one of them is no distribution.

    Example:
        >>> js_distance((1.0, 0.0), (0.0, 1.0)), js_distance((0.25, 0.75), (0.25, 0.75))
        (1.0, 0.0)
    """
    columns = [np.asarray(shares, dtype=np.float64) for shares in (p, q)]
    if columns[0].shape != columns[1].shape or not all(_is_distribution(column) for column in columns):
        raise DataError(f"expected shares of the same options, none negative and not all 0, got {p!r} and {q!r}")
    with np.errstate(invalid="ignore"):
        distance = float(jensenshannon(*columns, base=2))
    return 0.0 if np.isnan(distance) else min(distance, 1.0)  # rounding may put the divergence of equals below 0


def _is_distribution(column: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    return bool(column.ndim == 1 and np.isfinite(column).all() and (column >= 0).all() and column.sum() > 0)

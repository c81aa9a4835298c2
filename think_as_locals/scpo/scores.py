"""Scores of all responses by a scalar reward model, and their distance from a survey's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax

from think_as_locals.data.sources.globalopinionqa import OpinionQuestion, is_answer, others_mean
from think_as_locals.evaluation.journal import ask_by_journal, by_response, content_key
from think_as_locals.reward_models.reward_model import Request
from think_as_locals.reward_models.scalar import ScalarRM
from think_as_locals.types import DataError, Item

Scores = dict[str, float]
"""`journal.content_key` of a prompt and a response -> the score of the response."""


def pair_keys(item: Item) -> tuple[str, str]:
    """Return the keys in `Scores` of a pair's chosen and rejected response."""
    best, other = item.responses[item.best], item.responses[1 - item.best]
    return content_key(item.prompt, best), content_key(item.prompt, other)


def response_requests(items: Sequence[Item], questions: Sequence[OpinionQuestion] = ()) -> list[Request]:
    """Return a request for each distinct response and each answer to a question, whatever the order of the items."""
    requests = [Request(item, (i,)) for item in items for i in range(len(item.responses))]
    for question in questions:
        answers = [question.options[i] for i in _answer_indices(question)]
        # An item has two responses; only the first is scored.
        pairs = (question.item(str(i), (answer, answers[i - 1]), None) for i, answer in enumerate(answers))
        requests += [Request(pair, (0,)) for pair in pairs]
    by_key = {by_response(request): request for request in sorted(requests, key=lambda r: (r.item.id, r.order))}
    return [by_key[key] for key in sorted(by_key)]


def fitting_requests(rm: ScalarRM, requests: Sequence[Request]) -> list[Request]:
    """Return the requests that are not too long for a reward model."""
    rows = rm.rows(requests) if requests else []  # a rank may have none
    return [request for request, row in zip(requests, rows, strict=True) if len(row["input_ids"]) <= rm.max_length]


def score_responses(
    rm: ScalarRM, requests: Sequence[Request], folder: Path, advance: Callable[[int, int], None]
) -> Scores:
    """Score the requests that are not too long; all ranks call this with the same requests and get all scores."""
    state = PartialState()
    mine = fitting_requests(rm, requests[state.process_index :: state.num_processes])
    path = folder / f"rank-{state.process_index}.jsonl"
    if rm.model.training:  # with dropout, a resumed run would score the rest with other random draws
        path.unlink(missing_ok=True)
    answers = ask_by_journal(rm, path, rm.identity, mine, advance, key=by_response)
    scored = [(by_response(request), float(answer["score"])) for request, answer in zip(mine, answers, strict=True)]
    return dict(gather_object(scored))


# The distance of a reward model's opinion from a country's, as in GlobalOpinionQA (arXiv 2306.16388).


def _answer_indices(question: OpinionQuestion) -> list[int]:
    """Return the indices of the options that are answers; none if there are fewer than two."""
    indices = [i for i, option in enumerate(question.options) if is_answer(option)]
    return indices if len(indices) > 1 else []


def opinion_distances(questions: Sequence[OpinionQuestion], country: str, scores: Scores | None) -> dict[int, float]:
    """Return by index of a question the distance of the softmax of its scores from a country's answers.

    Without scores it is the distance of the mean of all other countries. Shares are scaled to sum to 1 (ours). Options
    that are not answers are left out, as are questions that were not asked in the country, have fewer than two answers,
    or an answer without a score.
    """
    distances = {}
    for index, question in enumerate(questions):
        indices = _answer_indices(question)
        if country not in question.shares or not indices:
            continue
        predicted: Sequence[float] | None
        if scores is None:
            others = others_mean(question, country)
            predicted = [others[i] for i in indices] if others else None
        else:
            values = [scores.get(content_key(question.question, question.options[i])) for i in indices]
            predicted = None if None in values else softmax(np.array(values, float)).tolist()
        shares = [question.shares[country][i] for i in indices]
        if predicted and sum(shares) and sum(predicted):
            distances[index] = js_distance(shares, predicted)
    return distances


def js_distance(p: Sequence[float], q: Sequence[float]) -> float:
    """Return the Jensen-Shannon distance, 0 if equal and 1 if disjoint: its base is 2 (ours: the paper names none)."""
    columns = [np.asarray(shares, dtype=np.float64) for shares in (p, q)]
    valid = [column.size and np.isfinite(column).all() and (column >= 0).all() and column.any() for column in columns]
    if len(p) != len(q) or not all(valid):
        raise DataError(f"expected shares of the same options, none negative and not all 0, got {p!r} and {q!r}")
    with np.errstate(invalid="ignore"):
        distance = float(jensenshannon(*columns, base=2))
    return 0.0 if np.isnan(distance) else min(distance, 1.0)  # rounding may put the divergence of equals below 0

"""RewardBench 2: a judge behind an OpenAI-compatible server in its generative runner (rewardbench 0.1.4).

The runner has its own prompt and format, which our judges do not know: `plug_in` replaces its calls by ones with the
judge's prompt and our parser. The subset Ties (with --score_w_ratings every subset) is rated by the same model with our
prompt `rewardbench2_ratings`. Data, shuffling and scores are the runner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

from think_as_locals.reward_models.group import GroupReward, PolicyPrompt, Turns, item_of, question, response
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.protocols import JudgingProtocol
from think_as_locals.types import LABELS, DataError

_ERROR, _NO_RATING = "error", -1  # the runner's values for a verdict and a rating that cannot be parsed


def plug_in(runner: ModuleType, path: str, base_url: str, **options: Any) -> None:
    """Have RewardBench's runner call a judge instead of a provider's model named `path`.

    `runner` is `rewardbench.generative_v2`, before `scripts.run_generative_v2` imports its functions.
    """
    pointwise = JudgingProtocol(kind="pointwise", orders=1, convention="rewardbench2")
    ratings = {**options, "prompt": "rewardbench2_ratings", "protocol": pointwise}
    names = vars(runner)
    names["run_judge_four"] = partial(_run_judge_four, Judge.load(path, base_url=base_url, **options))
    names["run_judge_ratings_multi"] = partial(_run_judge_ratings_multi, Judge.load(path, base_url=base_url, **ratings))
    names["API_MODEL_LIST"] = (*names["API_MODEL_LIST"], path)


def _run_judge_four(
    judge: Judge, prompt: str, a: Turns, b: Turns, c: Turns, d: Turns, *model: object, **others: object
) -> tuple[str, str, str]:
    """Return the label of the best of four conversations (or `error`), the prompt and the judge's completion."""
    text = question(a[:-1])
    try:
        item = item_of(PolicyPrompt(text, None, "en"), [response(answer[-1:]) for answer in (a, b, c, d)])
    except DataError as error:
        return _ERROR, text, str(error)
    (scored,) = judge.predict([item])
    judgement, label = scored.judgement, _ERROR
    if judgement.verdict is not None:
        label = LABELS[item.responses.index(scored.presented.responses[judgement.verdict])]
    return label, text, judgement.completion


def _run_judge_ratings_multi(
    judge: Judge, prompt: str, answers: Sequence[Turns], *model: object, **others: object
) -> tuple[list[int] | str, list[str], dict[str, list[int]]]:
    """Return the indices of the best-rated conversations (or `error`), the prompts, and all ratings."""
    questions = [question(answer[:-1]) for answer in answers]
    scores = GroupReward(judge).score(questions, [response(answer[-1:]) for answer in answers])
    ratings = [_NO_RATING if score is None else int(score) for score in scores]
    best = [index for index, rating in enumerate(ratings) if rating == max(ratings)]
    return _ERROR if max(ratings) == _NO_RATING else best, questions, {"ratings": ratings}

"""verl 0.9: a judge behind an OpenAI-compatible server as a custom reward function, without torch.

verl passes one response at a time, to any of several processes. A judge that compares then needs another response: the
row's `ground_truth`. Rated responses (`protocol=pointwise prompt=rewardbench2_ratings`) need none. If verl passes whole
batches (by the reward manager `batch` of older versions, or a custom one), `compute_scores` compares the responses to a
prompt. A row's `extra_info` has `question` and optionally `culture` and `language`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from think_as_locals.reward_models.group import GroupReward
from think_as_locals.reward_models.protocols import ROUND_ROBIN, JudgingProtocol
from think_as_locals.types import ConfigError, DataError, ProtocolKind, is_text

Info = Mapping[str, Any] | None

_loaded: dict[str, GroupReward] = {}  # by the repr of their arguments, which may be mappings


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | None,
    extra_info: Info,
    *,
    model: str,
    base_url: str | None = None,
    protocol: ProtocolKind = ROUND_ROBIN.kind,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **options: Any,
) -> dict[str, float]:
    """Score one response, against `ground_truth` or by a rating.

    Args:
        ground_truth: A response to compare it with; ignored if responses are rated.
        extra_info: The row's: `question`, and optionally `culture` and `language`.
        model: Directory or Hub id of the judge, or the server's name for it.
        base_url: Of the server; without one, verl's own router to the reward model that it serves.
        protocol: How responses are put to the judge.
        **options: Other arguments of `GroupReward.load`.

    Returns:
        `score`, and `judged`: 0 for a parse failure, whose score is `GroupReward.neutral` (verl accepts only numbers).
    """
    if protocol != "pointwise" and not is_text(ground_truth):
        raise DataError(
            f"nothing to compare a response with: verl passes one at a time, and its ground_truth is {ground_truth!r}. "
            "Put a reference response there, or have responses rated: protocol=pointwise prompt=rewardbench2_ratings"
        )
    if base_url is None and reward_router_address is None:
        raise ConfigError("no server: give reward_kwargs.base_url, or let verl serve the judge as its reward model")
    settings = {"base_url": base_url or f"http://{reward_router_address}/v1", "protocol": protocol, **options}
    rows = ([data_source], [solution_str], [ground_truth], [extra_info])
    (score,) = await asyncio.to_thread(compute_scores, *rows, model=model, **settings)
    return score


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[str | None],
    extra_infos: Sequence[Info],
    *,
    model: str,
    base_url: str,
    protocol: ProtocolKind = ROUND_ROBIN.kind,
    **options: Any,
) -> list[dict[str, float]]:
    """Score a batch, as verl's reward manager `batch` asks; see `compute_score`.

    Responses to the same prompt are compared with one another, and with each `ground_truth`.
    """
    pointwise = protocol == "pointwise"
    arguments = repr((model, base_url, protocol, sorted(options.items())))
    if arguments not in _loaded:
        orders = 1 if pointwise else ROUND_ROBIN.orders
        how = JudgingProtocol(kind=protocol, orders=orders, convention=ROUND_ROBIN.convention)
        _loaded[arguments] = GroupReward.load(model, protocol=how, base_url=base_url, **options)
    reward = _loaded[arguments]
    infos = [info or {} for info in extra_infos]
    for info in infos:
        if not is_text(info.get("question")):
            names = ", ".join(sorted(map(str, info))) or "nothing"
            raise DataError(f"extra_info has no question, what the user asked; it has {names}")
    scores = reward.score(
        [info["question"] for info in infos],
        list(solution_strs),
        [info.get("culture") for info in infos],
        [info.get("language") for info in infos],
        None if pointwise else list(ground_truths),
    )
    return [
        {"score": reward.neutral if score is None else score, "judged": float(score is not None)} for score in scores
    ]

"""verl: a judge behind an OpenAI-compatible server as custom reward function. No torch is imported here.

    reward.custom_reward_function.path=pkg://think_as_locals.integrations.verl_reward
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.model=owner/judge
    +reward.custom_reward_function.reward_kwargs.base_url=http://127.0.0.1:8000/v1

verl 0.9 hands over one response at a time, to any of several processes. A judge that compares then needs a response to
compare it with: the row's `ground_truth`. With `reward_kwargs.protocol=pointwise` and
`reward_kwargs.prompt=rewardbench2_ratings` it is rated and needs none. Where verl hands over whole batches (the reward
manager `batch` of older versions, or one of your own) `name=compute_scores` lets the responses to a prompt compete.

A row's `extra_info` holds `question`, what the user asked, and, where they are known, `culture` and `language`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from think_as_locals.models.group_reward import ROUND_ROBIN, GroupReward
from think_as_locals.models.protocols import JudgingProtocol
from think_as_locals.types import ConfigError, DataError, ProtocolKind, is_text

Info = Mapping[str, Any] | None


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
    """Score one response, against `ground_truth` or by rating it.

    Args:
        data_source: Not looked at.
        solution_str: The response.
        ground_truth: A response to compare it with; not looked at, whatever it is, where responses are rated.
        extra_info: The row's; see above.
        model: Directory or Hub id of the judge, or the server's name for it.
        base_url: Of the server; without one, verl's own router of the reward model that it serves.
        protocol: How responses are put to the judge.
        reward_router_address: Passed by verl where it serves a reward model.
        reward_model_tokenizer: Passed by verl; not needed.
        **options: Others of `GenerativeRM.served`.

    Returns:
        `score`; and `judged`, 0 where the judge wrote nothing that can be read. The score is then
        `GroupReward.neutral`, since verl takes nothing but numbers.

    Raises:
        ConfigError: no server is given.
        DataError: the row has no question, or nothing to compare with.
        ServerError: the server is gone, silent, or answers what no other try would mend.
    """
    if protocol != "pointwise" and not is_text(ground_truth):
        raise DataError(
            f"nothing to compare a response with: verl hands over one at a time, and its ground_truth is "
            f"{ground_truth!r}. Put a reference response there, or have responses rated: protocol=pointwise "
            "prompt=rewardbench2_ratings"
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
    """Score a batch, in which responses to a prompt compete; a `ground_truth` is one more of them.

    As `compute_score`, for the reward manager that verl calls `batch`.
    """
    reward = _group_reward(model, base_url, protocol, **options)
    infos = [info or {} for info in extra_infos]
    scores = reward.score(
        [_question(info) for info in infos],
        list(solution_strs),
        [info.get("culture") for info in infos],
        [info.get("language") for info in infos],
        list(ground_truths) if protocol != "pointwise" else None,
    )
    judged = [score is not None for score in scores]
    values = [reward.neutral if score is None else score for score in scores]
    return [{"score": value, "judged": float(read)} for value, read in zip(values, judged, strict=True)]


def _question(info: Mapping[str, Any]) -> str:
    if not is_text(info.get("question")):
        raise DataError(
            f"extra_info has no question, what the user asked; it has {', '.join(sorted(map(str, info))) or 'nothing'}"
        )
    return str(info["question"])


_loaded: dict[str, GroupReward] = {}
"""Judges by what they were loaded with, in words: options may be mappings, which cannot be keys."""


def _group_reward(model: str, base_url: str, kind: ProtocolKind, **options: Any) -> GroupReward:
    wanted = repr((model, base_url, kind, sorted(options.items())))
    if wanted not in _loaded:
        orders = 1 if kind == "pointwise" else ROUND_ROBIN.orders
        protocol = JudgingProtocol(kind=kind, orders=orders, convention=ROUND_ROBIN.convention)
        _loaded[wanted] = GroupReward.load(model, protocol=protocol, base_url=base_url, **options)
    return _loaded[wanted]

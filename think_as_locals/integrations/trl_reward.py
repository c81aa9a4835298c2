"""TRL 1.16: a judge as a reward function of GRPOTrainer, and of other trainers with `reward_funcs`.

Responses to a prompt are compared within the process that sampled them, so each process needs all `num_generations` of
a prompt: `per_device_train_batch_size` times `steps_per_generation` must be a multiple of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from think_as_locals.reward_models.group import GroupReward, Turns, response
from think_as_locals.reward_models.reward_model import RewardModel


def judge_reward(judge: str | RewardModel, **options: Any) -> Callable[..., list[float | None]]:
    """Return a reward function for TRL that scores completions with `GroupReward`.

    The optional columns `culture` (ISO 3166), `language` (BCP-47) and `reference` (a response to compare with) of the
    dataset are used. A completion with no parseable comparison gets `None`, which TRL leaves out; TRL logs their share
    as `judge/parse_failure`. A blank completion gets the lowest reward instead.

    Args:
        judge: Directory, Hub id or server's name of a judge, or any reward model.
        **options: Those of `GroupReward.load`, with a path.

    Example:
        reward = judge_reward("owner/judge", base_url="http://127.0.0.1:8000/v1")
        GRPOTrainer(model="...", reward_funcs=[reward], train_dataset=..., args=GRPOConfig(num_generations=8)).train()
    """
    group_reward = GroupReward.load(judge, **options) if isinstance(judge, str) else GroupReward(judge, **options)

    def judge_rewards(
        prompts: Sequence[str | Turns],
        completions: Sequence[str | Turns],
        culture: Sequence[str | None] | None = None,
        language: Sequence[str | None] | None = None,
        reference: Sequence[str | None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        rewards = group_reward.score(prompts, list(map(response, completions)), culture, language, reference)
        if log_metric and rewards:
            log_metric("judge/parse_failure", rewards.count(None) / len(rewards))
        return rewards

    return judge_rewards

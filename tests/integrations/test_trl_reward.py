"""A judge as TRL's reward function: arguments and results of TRL 1.16, and a real policy training."""

from __future__ import annotations

from typing import Any

import pytest
from reward_models.scripted import longest, serving

from think_as_locals.integrations.trl_reward import judge_reward
from think_as_locals.reward_models.scalar import ConstantRM
from think_as_locals.types import DataError


def chat(text: str, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": text}]


def test_plain_and_conversational_rows_get_the_same_rewards() -> None:
    prompts, responses = ["Breakfast?"] * 3 + ["Lunch?"], ["Rice.", "Rice and miso.", "", "Soup."]
    with serving() as (url, asked):
        reward = judge_reward("judge", base_url=url)
        plain = reward(prompts=prompts, completions=responses, completion_ids=[[1]] * 4, culture=["JP"] * 4, id=[7] * 4)
        messages = reward(
            prompts=[chat(prompt) for prompt in prompts],
            completions=[chat(response, "assistant") for response in responses],
            culture=["JP"] * 4,
        )
    assert plain == messages == [0.5, 1.0, 0.0, 0.5]
    assert len(asked) == 4
    assert all(body["model"] == "judge" and "Culture: Japan" in body["messages"][-1]["content"] for body in asked)


def test_earlier_turns_are_shown_with_their_roles() -> None:
    prompt = [*chat("Be brief.", "system"), *chat("Breakfast?"), *chat("Where?", "assistant"), *chat("In Japan.")]
    with serving() as (url, asked):
        judge_reward("judge", base_url=url)(prompts=[prompt] * 2, completions=["Rice.", "Miso soup."])
    presented = asked[0]["messages"][-1]["content"]
    assert "system: Be brief.\n\nuser: Breakfast?\n\nassistant: Where?\n\nuser: In Japan." in presented


def test_language_and_reference_are_used_and_parse_failures_logged() -> None:
    logged: dict[str, float] = {}
    with serving(lambda texts: None if "odd" in texts else longest(texts)) as (url, asked):
        rewards = judge_reward("judge", base_url=url)(
            prompts=["p"] * 3 + ["q"],
            completions=["a", "abcd", "odd", "odd"],
            language=["en", "en", "th", "th"],
            reference=["abc", "abc", None, "abc"],
            log_metric=logged.__setitem__,
        )
    assert rewards == [0.0, 1.0, 0.5, None]
    assert logged == {"judge/parse_failure": 0.25}
    assert len(asked) == 8


def test_judge_reward_accepts_any_reward_model() -> None:
    reward = judge_reward(ConstantRM(seed=0))
    assert reward.__name__ == "judge_rewards"
    assert reward(prompts=["p", "p"], completions=["a", ""]) == [0.0, 0.0]
    with pytest.raises(TypeError, match="base_url"):
        judge_reward(ConstantRM(seed=0), base_url="http://127.0.0.1:1/v1")
    with pytest.raises(DataError, match="expected a message with a text"):
        reward(prompts=["p"], completions=[[{"role": "assistant", "content": [{"type": "image"}]}]])

"""A judge as TRL's reward function: arguments and results of TRL 1.16, and a real policy training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from reward_models.scripted import longest, serving
from reward_models.tiny import write_language_model
from reward_models.trained import judge_of_pairs
from trl import GRPOConfig, GRPOTrainer

from think_as_locals.integrations.trl_reward import judge_reward
from think_as_locals.reward_models.group import ROUND_ROBIN
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


@pytest.mark.slow
def test_grpo_trains_a_policy_on_judge_rewards(tmp_path: Path) -> None:
    rows = [{"prompt": chat(f"What is said on day {i}?"), "culture": "TH", "language": "en"} for i in range(4)]
    # In one order: so small a judge may choose by position, which in both orders is a tie for all.
    judge = judge_reward(judge_of_pairs(tmp_path / "judge"), protocol=replace(ROUND_ROBIN, orders=1))
    calls: list[list[float | None]] = []

    def reward(**columns: Any) -> list[float | None]:
        calls.append(judge(**columns))
        return calls[-1]

    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8}
    plain = {"use_cpu": True, "bf16": False, "logging_steps": 1, "save_strategy": "no", "report_to": []}
    settings = GRPOConfig(output_dir=str(tmp_path / "out"), max_steps=2, learning_rate=1e-3, **sizes, **plain)
    trainer = GRPOTrainer(
        model=write_language_model(tmp_path / "policy", 0),
        reward_funcs=[reward],
        args=settings,
        train_dataset=Dataset.from_list(rows),
    )
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    read = [[value for value in rewards if value is not None] for rewards in calls]
    logs = [log for log in trainer.state.log_history if "reward" in log]
    assert len(read) == len(logs) == 2
    assert min(map(len, read)) >= 4
    assert len({value for values in read for value in values}) > 1
    for values, log in zip(read, logs, strict=True):
        assert log["rewards/reward/mean"] == pytest.approx(sum(values) / len(values))
        assert log["judge/parse_failure"] == 1 - len(values) / 8
    assert any(not parameter.equal(before[name]) for name, parameter in trainer.model.named_parameters())

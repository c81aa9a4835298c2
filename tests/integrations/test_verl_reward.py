"""The contract of verl 0.9.1's custom reward functions, recorded: verl itself is not installed here.

`call_single` and `call_batch` pass what verl's `experimental/reward_loop/reward_manager/naive.py` and
`workers/reward_manager/batch.py` do, with `reward_kwargs` merged in as `trainer/ppo/reward.py` merges them.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import Any

import pytest
from conftest import launch
from reward_models.scripted import serving

from think_as_locals.integrations.verl_reward import compute_score, compute_scores
from think_as_locals.types import ConfigError, DataError, ServerError


def call_single(response: str, reference: str, info: dict[str, Any], router: str | None = None, **kwargs: Any) -> Any:
    """The result, and what verl makes of it."""
    given = {"num_turns": 2, "rollout_reward_scores": {}, **info}
    extra = {"reward_router_address": router, "reward_model_tokenizer": object()} if router else {}
    row = {"data_source": "d", "solution_str": response, "ground_truth": reference, "extra_info": given}
    assert inspect.iscoroutinefunction(compute_score)
    result = asyncio.run(compute_score(**{**row, **extra, **kwargs}))
    return {"reward_score": result["score"], "reward_extra_info": result}


def call_batch(responses: list[str], references: list[str | None], infos: list[Any], **kwargs: Any) -> list[float]:
    for info in infos:
        info["rollout_reward_scores"] = {}
    rows = {"data_sources": ["d"] * len(responses), "solution_strs": responses, "ground_truths": references}
    scores = compute_scores(**{**rows, "extra_infos": infos, **kwargs})
    return [score["score"] if isinstance(score, dict) else score for score in scores]


def test_one_response_is_compared_with_the_ground_truth_in_both_orders() -> None:
    info = {"question": "Breakfast?", "culture": "JP", "language": "en"}
    with serving() as (url, asked):
        result = call_single("Rice and miso.", "Toast.", info, model="judge", base_url=url)
        assert result == {"reward_score": 1.0, "reward_extra_info": {"score": 1.0, "judged": 1.0}}
        assert call_single("Rice.", "Rice and miso.", info, model="judge", base_url=url)["reward_score"] == 0.0
        assert call_single("Rice.", "Rice.", info, model="judge", base_url=url)["reward_score"] == 0.5
        assert call_single(" ", "Rice.", info, model="judge", base_url=url)["reward_score"] == 0.0
    assert len(asked) == 4
    assert all("Culture: Japan" in body["messages"][-1]["content"] for body in asked)


def test_many_responses_are_scored_at_a_time() -> None:
    async def all_of_them(url: str) -> list[dict[str, float]]:
        info = {"question": "Breakfast?"}
        return await asyncio.gather(
            *(compute_score("d", "x" * n, "xxx", info, model="judge", base_url=url) for n in range(1, 7))
        )

    with serving() as (url, asked):
        scores = [result["score"] for result in asyncio.run(all_of_them(url))]
    assert scores == [0.0, 0.0, 0.5, 1.0, 1.0, 1.0]
    assert len(asked) == 10


def test_verls_own_router_is_used_without_a_url() -> None:
    with serving() as (url, _):
        router = url.removeprefix("http://").removesuffix("/v1")
        assert call_single("abc", "a", {"question": "q"}, router, model="judge")["reward_score"] == 1.0


def test_a_rating_needs_no_ground_truth() -> None:
    rating = {"model": "judge", "protocol": "pointwise", "prompt": "rewardbench2_ratings"}
    with serving() as (url, asked):
        assert call_single("abc", "", {"question": "q"}, base_url=url, **rating)["reward_score"] == 3.0
        checked = {"answer": 42}  # what other data sets have for ground truth
        assert call_single("abc", checked, {"question": "q"}, base_url=url, **rating)["reward_score"] == 3.0  # type: ignore[arg-type]
    assert len(asked) == 4  # a second row beside it, since an item has two responses


def test_a_parse_failure_is_neutral_and_reported() -> None:
    with serving(lambda shown: None) as (url, _):
        result = call_single("a", "b", {"question": "q"}, model="judge", base_url=url)
    assert result["reward_extra_info"] == {"score": 0.5, "judged": 0.0}


def test_thinking_can_be_turned_off() -> None:
    quiet = {"model": "judge", "chat_template_kwargs": {"enable_thinking": False}}
    with serving() as (url, asked):
        assert call_single("abc", "a", {"question": "q"}, base_url=url, **quiet)["reward_score"] == 1.0
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in asked)


def test_responses_of_a_batch_are_compared_within_their_question() -> None:
    infos = [{"question": question} for question in ("p", "p", "q", "p")]
    with serving() as (url, asked):
        scores = call_batch(["a", "abc", "a", "ab"], [None, None, "abcd", None], infos, model="judge", base_url=url)
    assert scores == [0.0, 1.0, 0.0, 0.5]
    assert len(asked) == 8


def test_invalid_rows_are_refused() -> None:
    with pytest.raises(DataError, match="nothing to compare a response with"):
        call_single("a", "", {"question": "q"}, model="judge", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(DataError, match="no question, what the user asked; it has num_turns, prompt"):
        call_single("a", "b", {"prompt": "q"}, model="judge", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="no server"):
        call_single("a", "b", {"question": "q"}, model="judge")
    with pytest.raises(ServerError, match="no url of a server"):
        call_single("a", "b", {"question": "q"}, model="judge", base_url="127.0.0.1:9")


def test_it_needs_no_torch() -> None:
    program = """
import sys
from think_as_locals.integrations.verl_reward import compute_scores

print(compute_scores(["d"] * 2, ["a", "ab"], [None] * 2, [{"question": "q"}] * 2, model="judge", base_url=sys.argv[1]))
assert not {"torch", "transformers", "scipy", "numpy"} & {*sys.modules}
"""
    with serving() as (url, _):
        done = launch(sys.executable, "-c", program, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[{'score': 0.0, 'judged': 1.0}, {'score': 1.0, 'judged': 1.0}]\n"

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
from reward_models.scripted import Picks, longest, serving

from think_as_locals.integrations.verl_reward import compute_score, compute_scores
from think_as_locals.types import ConfigError, DataError, ServerError

INFO = {"question": "Breakfast?", "culture": "JP", "language": "en"}


def call_single(response: str, reference: Any, info: Any = INFO, router: str | None = None, **kwargs: Any) -> Any:
    """The result, and what verl makes of it."""
    given = {"num_turns": 2, "rollout_reward_scores": {}, **info}
    extra = {"reward_router_address": router, "reward_model_tokenizer": object()} if router else {}
    row = {"data_source": "d", "solution_str": response, "ground_truth": reference, "extra_info": given}
    assert inspect.iscoroutinefunction(compute_score)
    result = asyncio.run(compute_score(**{**row, **extra, "model": "judge", **kwargs}))
    return {"reward_score": result["score"], "reward_extra_info": result}


def call_batch(responses: list[str], references: list[str | None], infos: list[Any], **kwargs: Any) -> list[float]:
    for info in infos:
        info["rollout_reward_scores"] = {}
    rows = {"data_sources": ["d"] * len(responses), "solution_strs": responses, "ground_truths": references}
    scores = compute_scores(**{**rows, "extra_infos": infos, "model": "judge", **kwargs})
    return [score["score"] if isinstance(score, dict) else score for score in scores]


RATING = {"protocol": "pointwise", "prompt": "rewardbench2_ratings"}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("response", "reference", "options", "picks", "result", "requests"),
    [
        ("Rice and miso.", "Toast.", {}, longest, (1.0, 1.0), 2),  # in both orders
        ("Rice.", "Rice and miso.", NO_THINKING, longest, (0.0, 1.0), 2),
        ("Rice.", "Rice.", {}, longest, (0.5, 1.0), 0),
        (" ", "Rice.", {}, longest, (0.0, 1.0), 0),
        ("a", "b", {}, lambda responses: None, (0.5, 0.0), 2),  # a parse failure
        ("abc", "", RATING, longest, (3.0, 1.0), 1),
        ("abc", {"answer": 42}, RATING, longest, (3.0, 1.0), 1),  # what other data sets have for ground truth
    ],
)
def test_response_is_compared_with_ground_truth_or_rated(
    response: str, reference: Any, options: Any, picks: Picks, result: tuple[float, float], requests: int
) -> None:
    score, judged = result
    with serving(picks) as (url, asked):
        found = call_single(response, reference, base_url=url, **options)
    assert found == {"reward_score": score, "reward_extra_info": {"score": score, "judged": judged}}
    assert len(asked) == requests
    for body in asked:
        assert body.get("chat_template_kwargs") == options.get("chat_template_kwargs")
        assert options == RATING or "Culture: Japan" in body["messages"][-1]["content"]


def test_verl_router_is_used_without_a_url() -> None:
    with serving() as (url, _):
        router = url.removeprefix("http://").removesuffix("/v1")
        assert call_single("abc", "a", router=router)["reward_score"] == 1.0


def test_batch_responses_are_compared_per_question() -> None:
    infos = [{"question": question} for question in ("p", "p", "q", "p")]
    with serving() as (url, asked):
        scores = call_batch(["a", "abc", "a", "ab"], [None, None, "abcd", None], infos, base_url=url)
    assert scores == [0.0, 1.0, 0.0, 0.5]
    assert len(asked) == 8


CLOSED_URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("reference", "info", "url", "error", "message"),
    [
        ("", INFO, CLOSED_URL, DataError, "nothing to compare a response with"),
        ("b", {"prompt": "q"}, CLOSED_URL, DataError, "no question, what the user asked; it has num_turns, prompt"),
        ("b", INFO, None, ConfigError, "no server"),
        ("b", INFO, "127.0.0.1:9", ServerError, "url: expected"),
    ],
)
def test_invalid_rows_are_rejected(reference: str, info: Any, url: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call_single("a", reference, info, base_url=url)


def test_verl_reward_imports_no_torch() -> None:
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

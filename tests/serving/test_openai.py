"""/v1: the judge as a model, through the official OpenAI client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient
from reward_models.tiny import write_language_model
from served_app import serving
from serving.judges import BASE, Longest, judge_of, settings
from serving.test_app import ITEM, KEY, refusals

from think_as_locals.engines import Sampling
from think_as_locals.judging import render
from think_as_locals.reward_models.judge import Judge
from think_as_locals.serving.app import create_app
from think_as_locals.types import Item, ServerError

MODEL = "runs/none/model"
OTHERS = {"id": "jp-1", "best": 1, "language": "en", "domain": "value", "group": "food", "source": "mine"}
QUESTION = Item(**{**ITEM, **OTHERS, "responses": tuple(ITEM["responses"])})


@pytest.fixture
def client(serve: Callable[..., TestClient]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, http_client=serve(key=KEY), max_retries=0)


def ask(client: openai.OpenAI, item: Item = QUESTION, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": render(item), **options})


def test_conversation_is_completed_unchanged_by_the_only_model(client: openai.OpenAI, longest: Longest) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.UnprocessableEntityError, match=r"body\.model: got 'gpt'"):
        ask(client, model="gpt")
    answer = ask(client, temperature=0, n=1, seed=3, max_tokens=64, user="me")
    (choice,) = answer.choices
    assert (answer.object, answer.model, choice.finish_reason) == ("chat.completion", MODEL, "stop")
    assert longest.prompts == [render(QUESTION)[-1]["content"]]
    assert "<verdict>" in choice.message.content


def test_temperature_and_seed_reach_the_engine_and_default_is_greedy(client: openai.OpenAI, longest: Longest) -> None:
    ask(client, temperature=0.7, seed=5)
    ask(client, temperature=1.0, top_p=1.0)
    ask(client, seed=5)
    drawn, other, greedy = longest.samplings
    assert (drawn.temperature, drawn.seed, other.temperature) == (0.7, 5, 1.0)
    assert greedy == Sampling(max_completion_length=64)


def test_judge_client_works_with_its_own_server(longest: Longest) -> None:
    """`Judge.load(base_url=...)` renders and parses itself; arguments of the chat template are the server's own."""
    judge, own = judge_of(longest), {"chat_template_kwargs": {"enable_thinking": False}}
    with serving(create_app(replace(judge, settings=replace(judge.settings, **own)), settings(), None)) as url:
        load = partial(Judge.load, "mine", base_url=f"{url}/v1", served_name=MODEL, max_completion_length=64)
        asked = {"prompt": "Breakfast?", "responses": ITEM["responses"], "culture": "JP"}
        assert ITEM["responses"][load(**own).judge(**asked).verdict] == "Rice and miso soup."
        assert len(longest.prompts) == 1
        with pytest.raises(ServerError, match=r"got 422 with .*body\.chat_template_kwargs: got "):
            load(chat_template_kwargs={"enable_thinking": True}).judge(**asked)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        *(({name: value}, name) for name, value in (("stream", True), ("n", 2), ("temperature", 2.1), ("tools", []))),
        ({"temperature": 0.7, "top_p": 0.9}, "top_p"),
        ({"temperature": 0.7, "seed": -1}, "seed"),
        *(({name: value}, name) for name, value in (("logprobs", True), ("max_tokens", 65), ("max_tokens", 0))),
        *(({name: value}, name) for name, value in (("stop", ["x"]), ("response_format", {"type": "json_object"}))),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x<|end|>"}]}, "messages.0.content"),
    ],
)
def test_unsupported_options_are_rejected(
    client: openai.OpenAI, longest: Longest, options: dict[str, Any], place: str
) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        ask(client, **options)
    assert place in refusals(raised.value.response)
    assert not longest.prompts


def test_wrong_key_and_engine_failure_are_errors_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError, match="the server's key"):
        ask(client.with_options(api_key="another-key"))
    with pytest.raises(openai.InternalServerError):
        ask(client, replace(QUESTION, responses=("broken", "x")))


@pytest.mark.slow
def test_usage_counts_the_tokens_of_a_local_model(tmp_path: Path) -> None:
    judge = Judge.load(write_language_model(tmp_path / "judge", seed=0), prompt="compact", max_completion_length=8)
    with TestClient(create_app(judge, settings(), None), BASE) as server:
        client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="none", http_client=server)
        answer = ask(client, max_completion_tokens=5)
    prompt = len(judge.engine.chat.encode([render(QUESTION)])[0])  # type: ignore[attr-defined]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.total_tokens) == (prompt, prompt + usage.completion_tokens)
    assert 1 <= usage.completion_tokens <= 5
    assert answer.choices[0].finish_reason == ("length" if usage.completion_tokens == 5 else "stop")

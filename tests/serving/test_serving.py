"""Many clients at once, over HTTP: batches, groups, and clients that disconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from conftest import SMALL
from items import make_item
from served_app import serving
from serving.judges import Longest, judge_of, settings

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import load
from think_as_locals.judging import render, shuffle_responses
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.load import load_judge
from think_as_locals.serving.app import create_app

T = TypeVar("T")


def with_clients(judge: Judge, clients: Callable[[httpx.AsyncClient], Awaitable[T]], *overrides: str) -> T:
    """What clients get of a judge behind a real server."""

    async def run(url: str) -> T:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            return await clients(client)

    with serving(create_app(judge, settings(*overrides), None)) as url:
        return asyncio.run(run(url))


def ask(client: httpx.AsyncClient, number: int, *responses: str, **options: Any) -> asyncio.Task[httpx.Response]:
    """Send an item whose second response is the longer one, in the background."""
    item = {"prompt": f"{number}?", "responses": responses or ["x", "x" * (number + 2)], "culture": "TH"}
    return asyncio.create_task(client.post("/judge", json={"items": [item]}, **options))


async def post_all(client: httpx.AsyncClient, route: str, bodies: Sequence[dict[str, Any]]) -> list[httpx.Response]:
    return list(await asyncio.gather(*(client.post(route, json=body) for body in bodies)))


async def entered(engine: Longest) -> None:
    assert await asyncio.to_thread(engine.entered.wait, 10)


def test_other_requests_survive_a_disconnect_and_a_failure() -> None:
    longest = Longest(held=True)

    async def crowd(client: httpx.AsyncClient) -> None:
        busy = ask(client, 0)
        await entered(longest)
        stay, breaks = [ask(client, i) for i in (1, 2)], ask(client, 1, "broken", "x")
        with pytest.raises(httpx.ReadTimeout):
            await ask(client, 3, timeout=0.5)
        longest.go_on.set()
        kept = [(await task).json()["judgements"][0]["verdict"] for task in (busy, *stay)]
        assert kept == [1, 1, 1]
        broke = await breaks
        assert (broke.status_code, broke.text) == (500, "Internal Server Error")
        assert (await ask(client, 4)).status_code == 200

    with_clients(judge_of(longest), crowd)
    assert longest.batches[:2] == [1, 4]  # one call while it was held up, then all four that waited, then each of them


def test_waiting_requests_share_a_batch_with_those_of_the_same_sampling() -> None:
    longest = Longest(held=True)

    async def crowd(client: httpx.AsyncClient) -> None:
        busy = ask(client, 0)
        await entered(longest)
        # Of several texts: the longer one is not always presented in the same place.
        asked = [["0", "000"], ["111", "1"], ["222", "2"], ["3", "333"], ["4", "444"], ["555", "5"]]
        items = [{"prompt": f"{i}?", "responses": each, "culture": "TH"} for i, each in enumerate(asked)]
        several = post_all(client, "/judge", [{"items": part} for part in (items[:1], items[1:3], items[3:])])
        ask_judge = {"model": "runs/none/model", "messages": render(make_item())}
        others = post_all(client, "/v1/chat/completions", [ask_judge | {"max_tokens": limit} for limit in (8, 16, 8)])
        answers = asyncio.gather(several, others)
        await asyncio.sleep(0.5)
        longest.go_on.set()
        judged, completed = await answers
        found = [each["verdict"] for answer in judged for each in answer.json()["judgements"]]
        assert found == [0 if len(one) > len(other) else 1 for one, other in asked]
        assert [answer.status_code for answer in (await busy, *completed)] == [200] * 4

    with_clients(judge_of(longest), crowd)
    assert longest.batches[0] == 1
    assert sorted(longest.batches[1:]) == [1, 2, 6]


def test_single_responses_wait_for_their_group() -> None:
    """As OpenRLHF's executor sends them: one response a request, all of a prompt at about the same time."""
    texts = ["x", "xxx", "xx", "y", "yy"]
    bodies = [{"query": [text[0] + "?" + text], "prompts": [text[0] + "?"], "labels": ["TH"]} for text in texts]

    async def executor(client: httpx.AsyncClient) -> None:
        start = time.monotonic()
        found = [response.json() for response in await post_all(client, "/score", bodies)]
        assert time.monotonic() - start >= 0.5
        assert [each["rewards"] for each in found] == [[0.0], [1.0], [0.5], [0.0], [1.0]]
        assert [each["extra_logs"]["group_size"] for each in found] == [[3.0]] * 3 + [[2.0]] * 2
        # A group that was judged is no more: the next response to the same prompt begins another one.
        alone = (await client.post("/score", json=bodies[0])).json()
        assert (alone["rewards"], alone["extra_logs"]["group_size"]) == ([0.5], [1.0])

    with_clients(judge_of(Longest()), executor, "score.group_size=3", "score.group_wait_s=0.5")


def test_the_response_of_a_disconnected_client_stays_in_its_group() -> None:
    async def crowd(client: httpx.AsyncClient) -> Any:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/score", json={"query": ["?xx"], "prompts": ["?"]}, timeout=0.2)
        return (await client.post("/score", json={"query": ["?x"], "prompts": ["?"]})).json()

    found = with_clients(judge_of(Longest()), crowd, "score.group_size=2")
    assert (found["rewards"], found["extra_logs"]["group_size"]) == ([0.0], [2.0])


def test_a_failure_fails_the_whole_group() -> None:
    async def crowd(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await post_all(client, "/score", [{"query": [f"?{text}"], "prompts": ["?"]} for text in ("broken", "x")])

    responses = with_clients(judge_of(Longest()), crowd, "score.group_size=2")
    assert [response.status_code for response in responses] == [500, 500]


@pytest.mark.slow
def test_concurrent_requests_match_direct_judgements(small_run: Path) -> None:
    model = str(small_run / "model")
    config = load_recipe("recipes/quickstart.yaml", SMALL)
    items = load(config.data, config.seed).test[:12]
    expected = Judge.load(model).judge(items)

    bodies = [
        {"items": [{"prompt": item.prompt, "responses": list(item.responses), "culture": item.culture}]}
        for item in items
    ]

    async def crowd(client: httpx.AsyncClient) -> list[Any]:
        return [answer.json()["judgements"][0] for answer in await post_all(client, "/judge", bodies)]

    answers = with_clients(load_judge(settings().judge.model_copy(update={"path": model}), seed=0), crowd)
    assert any(answer["verdict"] is not None for answer in answers)
    for item, judgement, answer in zip(items, expected, answers, strict=True):
        assert [item.responses[i] for i in answer["order"]] == list(shuffle_responses(item).responses)
        chosen = None if judgement.verdict is None else answer["order"][judgement.verdict]
        assert (answer["verdict"], answer["analysis"]) == (chosen, judgement.analysis)

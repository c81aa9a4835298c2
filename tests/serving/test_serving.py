"""Many clients at once, over HTTP: micro-batches, groups, limits, and clients that disconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import SMALL
from reward_models.tiny import ITEMS, write_language_model
from served_app import serving
from serving.judges import Longest, judge_of, open_engine, settings

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import load
from think_as_locals.judging import shuffle_responses
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.load import load_judge
from think_as_locals.serving.app import create_app
from think_as_locals.types import Item


def body_of(item: Item) -> dict[str, Any]:
    return {"prompt": item.prompt, "responses": list(item.responses), "culture": item.culture}


def item(number: int) -> dict[str, Any]:
    return {"prompt": f"{number}?", "responses": ["x", "x" * (number + 2)], "culture": "TH"}


async def post_all(url: str, route: str, bodies: Sequence[dict[str, Any]]) -> list[httpx.Response]:
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        return list(await asyncio.gather(*(client.post(route, json=body) for body in bodies)))


async def wait_until(happened: Any) -> None:
    for _ in range(2000):
        if happened():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen within 10 s")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    path = write_language_model(tmp_path_factory.mktemp("judge"), seed=0)
    section = settings("judge.max_completion_length=8").judge
    return load_judge(section.model_copy(update={"path": path}), seed=0)


class Counting:
    """An engine that counts its calls and keeps what it sampled."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.special_tokens = engine.special_tokens
        self.calls: list[int] = []
        self.texts: dict[str, str] = {}

    def sample(self, conversations: Any, sampling: Any, deliver: Any) -> None:
        def kept(place: int, rollout: Any) -> None:
            self.texts[conversations[place][-1]["content"]] = rollout.text
            deliver(place, rollout)

        self.calls.append(len(conversations))
        self._engine.sample(conversations, sampling, kept)


def test_simultaneous_requests_share_calls_of_a_real_engine_with_the_same_results(tiny: Judge) -> None:
    bodies = [{"items": [body_of(each)]} for each in ITEMS]
    alone, together = Counting(tiny.engine), Counting(tiny.engine)
    with serving(create_app(replace(tiny, engine=alone), settings("window_s=0.0"), None)) as url:
        one_by_one = [httpx.post(f"{url}/judge", json=body).json() for body in bodies]
    with serving(create_app(replace(tiny, engine=together), settings("window_s=0.4"), None)) as url:
        at_once = [response.json() for response in asyncio.run(post_all(url, "/judge", bodies))]
    assert alone.calls == [1] * len(ITEMS)
    assert sum(together.calls) == len(ITEMS)
    assert len(together.calls) < len(ITEMS) / 2
    assert at_once == one_by_one
    assert together.texts == alone.texts
    assert len(set(alone.texts.values())) > 1


def test_a_full_server_refuses_requests_and_recovers() -> None:
    longest = Longest()

    async def crowd(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            first = [asyncio.create_task(client.post("/judge", json={"items": [item(i)]})) for i in range(3)]
            await wait_until(longest.entered.is_set)
            await asyncio.sleep(0.2)
            refused = await client.post("/judge", json={"items": [item(9)]})
            assert refused.status_code == 503
            assert refused.headers["Retry-After"] == "1"
            assert refused.json()["errors"][0]["got"] == "3 requests in flight"
            assert (await client.get("/health")).status_code == 200
            longest.go_on.set()
            assert [(await task).status_code for task in first] == [200] * 3
            assert (await client.post("/judge", json={"items": [item(9)]})).status_code == 200

    with serving(create_app(judge_of(longest), settings("limits.requests_at_once=3"), None)) as url:
        asyncio.run(crowd(url))


def test_slow_bodies_keep_nobody_out() -> None:
    longest = open_engine()
    head = b"POST /judge HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"

    async def drip(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b'{"items": ')
        said = await reader.read()  # to the end of the connection
        writer.close()
        return said

    async def crowd(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            slow = [asyncio.create_task(drip(client.base_url.port or 0)) for _ in range(3)]
            await asyncio.sleep(0.3)
            assert (await client.post("/judge", json={"items": [item(0)]})).status_code == 503
            for said in await asyncio.wait_for(asyncio.gather(*slow), 15):
                assert said.startswith(b"HTTP/1.1 408 ")
                assert b'"got":"10 bytes of it","expected":"all of it within 1 s"' in said
            assert (await client.post("/judge", json={"items": [item(0)]})).status_code == 200

    with serving(create_app(judge_of(longest), settings("limits.requests_at_once=3", "limits.body_s=1"), None)) as url:
        asyncio.run(crowd(url))


def test_other_requests_survive_a_disconnect_and_a_failure() -> None:
    longest = Longest()

    async def crowd(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            busy = asyncio.create_task(client.post("/judge", json={"items": [item(0)]}))
            await wait_until(longest.entered.is_set)
            broken = {**item(1), "responses": ["broken", "x"]}
            stay = [asyncio.create_task(client.post("/judge", json={"items": [item(i)]})) for i in (1, 2)]
            breaks = asyncio.create_task(client.post("/judge", json={"items": [broken]}))
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/judge", json={"items": [item(3)]}, timeout=0.5)
            longest.go_on.set()
            return [await task for task in (busy, *stay, breaks)]

    with serving(create_app(judge_of(longest), settings(), None)) as url:
        *kept, broke = asyncio.run(crowd(url))
        assert [response.json()["judgements"][0]["verdict"] for response in kept] == [1, 1, 1]
        assert broke.status_code == 500
        assert httpx.post(f"{url}/judge", json={"items": [item(4)]}).status_code == 200
    assert longest.calls[:2] == [1, 4]  # one call while it was held up, then all four that waited, then each of them


def test_single_responses_wait_for_their_group() -> None:
    """As OpenRLHF's executor sends them: one response a request, all of a prompt at about the same time."""
    longest = open_engine()
    texts = ["x", "xxx", "xx", "y", "yy"]
    bodies = [{"query": [text[0] + "?" + text], "prompts": [text[0] + "?"], "labels": ["TH"]} for text in texts]
    overrides = ("score.group_size=3", "score.group_wait_s=0.5")
    with serving(create_app(judge_of(longest), settings(*overrides), None)) as url:
        start = time.monotonic()
        found = [response.json() for response in asyncio.run(post_all(url, "/score", bodies))]
        assert time.monotonic() - start >= 0.5
        assert [each["rewards"] for each in found] == [[0.0], [1.0], [0.5], [0.0], [1.0]]
        assert [each["extra_logs"]["group_size"] for each in found] == [[3.0]] * 3 + [[2.0]] * 2
        # A group that was judged is no more: the next response to the same prompt begins another one.
        alone = httpx.post(f"{url}/score", json=bodies[0]).json()
        assert (alone["rewards"], alone["extra_logs"]["group_size"]) == ([0.5], [1.0])


def test_the_response_of_a_disconnected_client_stays_in_its_group() -> None:
    longest = open_engine()

    async def crowd(url: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/score", json={"query": ["?xx"], "prompts": ["?"]}, timeout=0.2)
            return await client.post("/score", json={"query": ["?x"], "prompts": ["?"]})

    with serving(create_app(judge_of(longest), settings("score.group_size=2"), None)) as url:
        found = asyncio.run(crowd(url)).json()
    assert (found["rewards"], found["extra_logs"]["group_size"]) == ([0.0], [2.0])


def test_a_failure_fails_the_whole_group() -> None:
    longest = open_engine()
    bodies = [{"query": [f"?{text}"], "prompts": ["?"]} for text in ("broken", "x")]
    with serving(create_app(judge_of(longest), settings("score.group_size=2"), None)) as url:
        assert [response.status_code for response in asyncio.run(post_all(url, "/score", bodies))] == [500, 500]


@pytest.mark.slow
def test_a_trained_judge_gives_the_same_verdicts_over_http(small_run: Path) -> None:
    model = str(small_run / "model")
    config = load_recipe("recipes/quickstart.yaml", SMALL)
    items = load(config.data, config.seed).test[:12]
    shown = [shuffle_responses(each) for each in items]
    expected = [judgement.verdict for judgement in Judge.load(model).judge(items)]
    section = settings().judge.model_copy(update={"path": model})
    with serving(create_app(load_judge(section, seed=0), settings(), None)) as url:
        bodies = [{"items": [body_of(each)]} for each in items]
        answers = [response.json()["judgements"][0] for response in asyncio.run(post_all(url, "/judge", bodies))]
    assert any(answer["verdict"] is not None for answer in answers)
    for item_, as_shown, verdict, answer in zip(items, shown, expected, answers, strict=True):
        assert [item_.responses[i] for i in answer["order"]] == list(as_shown.responses)
        assert answer["verdict"] == (None if verdict is None else answer["order"][verdict])

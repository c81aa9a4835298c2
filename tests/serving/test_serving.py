"""Many clients at once over HTTP, and the server process: batches, groups, disconnects, access control and shutdown."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest
from conftest import SMALL
from items import make_item
from reward_models.tiny import write_language_model
from served_app import serving, tal_serve
from serving.judges import Longest, judge_of, settings
from warm import processes_in

from think_as_locals.config.checks import load_recipe
from think_as_locals.data import load
from think_as_locals.judging import render, shuffle_responses
from think_as_locals.reward_models.judge import Judge
from think_as_locals.reward_models.load import load_judge
from think_as_locals.serving.app import KEY_VARIABLE, create_app, load_server, required_key, serve
from think_as_locals.types import ConfigError

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


def test_a_disconnected_response_stays_in_its_group_and_a_failure_fails_the_whole_group() -> None:
    def row(text: str) -> dict[str, Any]:
        return {"query": [f"?{text}"], "prompts": ["?"]}

    async def crowd(client: httpx.AsyncClient) -> Any:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/score", json=row("xx"), timeout=0.2)
        found = (await client.post("/score", json=row("x"))).json()
        return found, await post_all(client, "/score", [row("broken"), row("x")])

    found, failed = with_clients(judge_of(Longest()), crowd, "score.group_size=2")
    assert (found["rewards"], found["extra_logs"]["group_size"]) == ([0.0], [2.0])
    assert [response.status_code for response in failed] == [500, 500]


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


# --- the process ---

KEY = "0123456789abcdef"


NON_LOOPBACK = ["0.0.0.0", "::", "10.1.2.3", "judge.example"]  # noqa: S104


@pytest.mark.parametrize("host", [*NON_LOOPBACK, "127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_server_beyond_loopback_requires_a_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert required_key(host) == KEY
    monkeypatch.delenv(KEY_VARIABLE)
    if host in NON_LOOPBACK:
        message = f"host={host} can be reached from other machines: put a key into TAL_API_KEY"
        with pytest.raises(ConfigError, match=message):
            serve(settings(f"host='{host}'"))
    else:
        assert required_key(host) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["port=70000"], "port: got 70000"),
        (["judge.protocol=pairwise"], "judge.protocol: got pairwise in 1 orders, expected listwise in one"),
        (["score.protocol=pointwise"], "score.protocol: pointwise needs score.orders=1 and score.prompt"),
    ],
)
def test_invalid_settings_are_rejected_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_server("a/model", overrides)


def test_model_path_may_contain_special_characters() -> None:
    path = 'a folder/with = signs, "quotes", {braces} and letters like é\\'
    assert load_server(path).judge.path == path
    assert load_server("owner/name", ["judge.backend=vllm"]).judge.backend == "vllm"


@pytest.mark.slow
def test_requests_in_flight_are_answered_after_sigterm(tmp_path: Path, warm_python: str) -> None:
    model = write_language_model(tmp_path / "judge", seed=0)
    items = [{"prompt": f"{i}?", "responses": ["x", "y"], "culture": "TH"} for i in range(48)]
    answers: list[httpx.Response] = []
    headers = {"Authorization": f"Bearer {KEY}"}
    with tal_serve(warm_python, tmp_path, model, "judge.max_completion_length=220", key=KEY) as (process, url):
        assert httpx.post(f"{url}/judge", json={"items": items}).status_code == 401

        def ask() -> None:
            answers.append(httpx.post(f"{url}/judge", json={"items": items}, headers=headers, timeout=60))

        assert httpx.get(f"{url}/openapi.json", headers=headers).status_code == 200
        assert _answer_to_endless_headers(int(url.rpartition(":")[2])).startswith(b"HTTP/1.1 400 ")
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(0.3)
        in_flight = asking.is_alive()
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert process.stderr is not None
        stderr = process.stderr.read()
        assert process.wait(60) == 0
    assert in_flight
    assert [response.status_code for response in answers] == [200]
    assert len(answers[0].json()["judgements"]) == len(items)
    assert KEY not in stderr


def _answer_to_endless_headers(port: int) -> bytes:
    """What comes before any key must be bounded as well."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
        for _ in range(40):
            client.sendall(b"a" * 4096)
            if select.select([client], [], [], 0.05)[0]:
                return client.recv(100)
    return b"none after 160 kB"


@pytest.mark.slow
def test_sigterm_ends_all_vllm_processes(small_run: Path, tmp_path: Path, warm_vllm: str) -> None:
    model = str(small_run / "model")
    with tal_serve(warm_vllm, tmp_path, model, "judge.backend=vllm", key=KEY) as (process, url):
        engine = processes_in(tmp_path)
        names = {each.name()[:15] for each in engine}
        asked = {"items": [{"prompt": "How do they greet?", "responses": ["A bow.", "A wai."], "culture": "TH"}]}
        answer = httpx.post(f"{url}/judge", json=asked, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert len(answer.json()["judgements"]) == 1
    assert {"VLLM::EngineCor", "VLLM::Worker"} <= names
    assert not psutil.wait_procs(engine, timeout=5)[1]

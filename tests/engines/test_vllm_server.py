"""Clients of one vLLM server and of several, against faulty answers; test_rollouts.py uses a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import HANGS_UP, Answer, Received, answering

from think_as_locals.config.checks import load_recipe
from think_as_locals.engines import vllm_server
from think_as_locals.engines.vllm_server import OtherWeightsError, VLLMServer, VLLMServers, share
from think_as_locals.machine.doctor import missing_for
from think_as_locals.types import ServerError

DIES = (HANGS_UP, None)
DONE = (200, {})
SAMPLED = {"token_ids": [5], "logprobs": {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:5": -0.5}]}}
ANSWERS = (200, {"choices": [{"index": 0, **SAMPLED}]})


@dataclass
class Scripted:
    """Gives its answers one after another, the last one for ever."""

    url: str = ""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def respond(self, request: Received) -> Answer:
        self.asked.append((request.path, request.headers["Authorization"]))
        return (*(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]), {})

    def client(self, *answers: tuple[int, Any], timeout_s: float = 30) -> VLLMServer:
        self.answers[:] = answers
        return VLLMServer(self.url, timeout_s)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    scripted = Scripted()
    with answering(scripted.respond) as scripted.url:
        yield scripted


def fault(client: VLLMServer) -> str:
    with pytest.raises(ServerError) as caught:
        client.state()
    return str(caught.value)


def holds(*weights: str) -> tuple[int, Any]:
    return 200, {"results": [{"weights": each} for each in weights]}


def updating(now: bool) -> tuple[int, Any]:
    return 200, {"results": [{"updating": now}]}


def test_key_is_sent_with_requests_and_never_shown(server: Scripted) -> None:
    message = fault(server.client((401, "no")))
    assert server.asked == [("/collective_rpc", "Bearer secret")]  # a client error is not tried again
    assert "401" in message
    assert "secret" not in message


def test_failing_server_is_retried_three_times(server: Scripted) -> None:
    assert server.client((500, "EngineDeadError"), holds("w")).state() == {"weights": "w"}
    message = fault(server.client((500, "EngineDeadError")))
    assert "EngineDeadError" in message
    assert "3 tries" in message
    assert len(server.asked) == 5


@pytest.mark.parametrize("content", ["<html>", "[" * 100_000, [], {}, {"results": None}, {"results": ["up"]}])
def test_unexpected_answer_is_reported_as_another_server(server: Scripted, content: Any) -> None:
    assert f"{server.url} is no vLLM server that launch/vllm_server.sh" in fault(server.client((200, content)))


def test_workers_with_different_weights_are_rejected(server: Scripted) -> None:
    assert "differ" in fault(server.client(holds("a", "b")))


def test_complete_checks_the_weights_before_and_after(server: Scripted) -> None:
    client = server.client(holds("mine"), DIES, holds("mine"), ANSWERS, holds("mine"))
    [completion] = client.complete([[1]], "mine")
    assert (completion.token_ids, completion.log_probs) == ([5], [-0.5])
    server.answers[:] = [holds("mine"), ANSWERS, holds("another's")]
    with pytest.raises(OtherWeightsError, match="holds another's, expected mine"):
        client.complete([[1]], "mine")


def test_restarted_server_raises_other_weights(server: Scripted) -> None:
    with pytest.raises(OtherWeightsError):
        server.client(holds("mine"), DIES, holds("those of the start")).complete([[1]], "mine")
    assert [path for path, _ in server.asked] == ["/collective_rpc", "/v1/completions", "/collective_rpc"]


def test_requests_within_one_limit_share_its_timeout(server: Scripted) -> None:
    client = server.client(DIES, timeout_s=1.2)
    with client.one_limit():
        assert "2 tries" in fault(client)
        assert "no time was left" in fault(client)
    assert len(server.asked) == 2
    assert "2 tries" in fault(client)


def test_failed_prefix_cache_reset_raises(server: Scripted) -> None:
    with pytest.raises(ServerError, match="did not empty its prefix cache"):
        server.client(updating(False), DONE, updating(True), DONE, (200, {"success": False})).load_weights([], "new")


def test_weight_sync_sends_all_files_in_one_update(server: Scripted) -> None:
    half_done, loads = [updating(True), DONE], [updating(True), DONE]
    client = server.client(*half_done, DONE, *loads, *loads, *loads, (200, {"success": True}))
    client.load_weights([Path("a"), Path("b")], "new")
    finish, update, state = "/finish_weight_update", "/update_weights", "/collective_rpc"
    routes = [state, finish, "/start_weight_update", state, update, state, update, state, finish, "/reset_prefix_cache"]
    assert [path for path, _ in server.asked] == routes  # one that another trainer left half done is ended first


def test_weight_sync_distinguishes_restarted_from_failing_server(server: Scripted) -> None:
    started = (updating(False), DONE, updating(True))
    with pytest.raises(OtherWeightsError, match="was restarted while it took weights"):
        server.client(*started, DIES, updating(False)).load_weights([Path("a")], "new")
    with pytest.raises(ServerError, match=r"No such file.*1 tries") as error:
        server.client(*started, (500, "No such file")).load_weights([Path("a")], "new")
    assert not isinstance(error.value, OtherWeightsError)


def test_refused_connection_fails_in_time_and_names_a_remedy(server: Scripted) -> None:
    started = time.monotonic()
    message = fault(VLLMServer("http://127.0.0.1:9", 1.5))
    assert time.monotonic() - started < 4
    for part in ("http://127.0.0.1:9", "launch/vllm_server.sh", "rollout.timeout_s"):
        assert part in message


def test_preflight_reports_a_missing_key_or_server(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_recipe("recipes/quickstart.yaml", ["rollout=vllm_server", "rollout.urls=[http://127.0.0.1:9]"])
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    [message] = missing_for(config)
    assert "VLLM_API_KEY is not set" in message
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    [message] = missing_for(config)
    assert "launch/vllm_server.sh" in message


@dataclass
class Echo:
    """A server whose completion of a prompt is the prompt; it can be dead, die as it samples, or hang at routes."""

    weights: str = "mine"
    dead: bool = False
    dies: bool = False
    hangs: str = ""  # how the routes begin
    sampled: list[list[list[int]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def respond(self, request: Received) -> Answer:
        self.asked.append(request.path)
        while self.hangs and request.path.startswith(self.hangs):
            time.sleep(0.05)
        self.dead = self.dead or (self.dies and request.path == "/v1/completions")
        if self.dead:
            return HANGS_UP, None, {}
        if request.path == "/metrics":
            return 200, "vllm:prefix_cache_hits_total 3\nvllm:prefix_cache_queries_total 4", {}
        if request.path != "/v1/completions":
            return 200, {"results": [{"weights": self.weights}]}, {}
        self.sampled.append(request.body["prompt"])
        scored = [{"token_logprobs": [0.0] * len(p), "top_logprobs": [{}] * len(p)} for p in request.body["prompt"]]
        choices = zip(request.body["prompt"], scored, strict=True)
        found = [{"index": i, "token_ids": ids, "logprobs": score} for i, (ids, score) in enumerate(choices)]
        return 200, {"choices": found}, {}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[VLLMServers, list[Echo]]]:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setattr(vllm_server, "_PAUSE", 0.05)
    echoes = [Echo(), Echo()]
    with ExitStack() as up:
        yield VLLMServers([up.enter_context(answering(echo.respond)) for echo in echoes], timeout_s=3), echoes
        for echo in echoes:
            echo.hangs = ""


PROMPTS = [[n // 2] * (n + 1) for n in range(8)]


def sampled(pool: VLLMServers) -> list[list[int]]:
    return [one.token_ids for one in pool.complete(PROMPTS, "mine", max_tokens=4)]


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1), st.integers(1, 4), st.integers(0, 9))
def test_share_assigns_every_prompt_once_and_balances_load(
    prompts: list[list[int]], count: int, max_tokens: int
) -> None:
    parts = share(prompts, count, max_tokens)
    assert sorted(place for part in parts for place in part) == list(range(len(prompts)))
    where = {place: number for number, part in enumerate(parts) for place in part}
    groups: dict[tuple[int, ...], set[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(tuple(prompt), set()).add(where[place])
    assert all(len(servers) == 1 for servers in groups.values())  # equal prompts share a prefix cache
    tokens = {prompt: len(prompt) + max_tokens * prompts.count(list(prompt)) for prompt in groups}
    loads = [sum(tokens[each] for each, servers in groups.items() if number in servers) for number in range(count)]
    assert max(loads) - min(loads) <= max(tokens.values())


def test_batch_is_split_over_servers_and_returned_in_order(pool: tuple[VLLMServers, list[Echo]]) -> None:
    servers, echoes = pool
    assert sampled(servers) == PROMPTS
    assert [len(echo.sampled) for echo in echoes] == [1, 1]
    assert sorted(p for echo in echoes for part in echo.sampled for p in part) == sorted(PROMPTS)


@pytest.mark.parametrize("fault", ["dies", "restarted"])
def test_part_of_a_failed_server_is_sampled_by_the_other(pool: tuple[VLLMServers, list[Echo]], fault: str) -> None:
    servers, echoes = pool
    if fault == "dies":
        echoes[1].dies = True
    else:
        echoes[1].weights = "those of the start"
    assert sampled(servers) == PROMPTS
    assert echoes[1].sampled == []
    assert len(echoes[0].sampled) == 2  # its own part, then the other's
    assert sampled(servers) == PROMPTS
    assert len(echoes[0].sampled) == 3  # the one that failed is not asked again
    echoes[1].dead = echoes[1].dies = False
    echoes[1].weights = "mine"
    assert servers.states() == [{"weights": "mine"}] * 2  # as a weight sync asks each
    assert sampled(servers) == PROMPTS
    assert len(echoes[1].sampled) == 1


def test_no_server_left_raises_other_weights_then_server_error(pool: tuple[VLLMServers, list[Echo]]) -> None:
    servers, echoes = pool
    for echo in echoes:
        echo.dead = True
    for _ in range(2):  # the second time none is asked
        with pytest.raises(OtherWeightsError, match="no vLLM server is left that holds mine"):
            sampled(servers)
    with pytest.raises(ServerError, match="2 tries"):
        servers.states()


def test_hanging_server_costs_half_the_time_limit_once(pool: tuple[VLLMServers, list[Echo]]) -> None:
    servers, echoes = pool
    servers._state_timeout_s = 0.3
    echoes[1].hangs = "/v1/completions"
    began = time.monotonic()
    with servers.one_limit():
        assert sampled(servers) == PROMPTS
    assert 1.5 <= time.monotonic() - began < 3
    assert servers.ready == servers.all[:1]
    echoes[1].hangs = "/"
    echoes[1].asked.clear()
    began = time.monotonic()
    for _ in range(2):  # weight syncs: it is asked whether it answers, and not to load weights
        assert servers.states() == servers.on_ready(VLLMServer.state) == [{"weights": "mine"}]
    servers.ready = servers.all
    with servers.one_limit():
        servers.prefix_cache()  # the first that a batch asks for
        assert sampled(servers) == PROMPTS
    assert time.monotonic() - began < 1.5
    assert echoes[1].asked == ["/collective_rpc"] * 2 + ["/metrics", "/collective_rpc"]


def test_servers_that_all_exceed_half_the_time_limit_are_said_to(pool: tuple[VLLMServers, list[Echo]]) -> None:
    servers, echoes = pool
    for server, echo in zip(servers.all, echoes, strict=True):
        server._timeout, echo.hangs = 1.0, "/v1/completions"
    with pytest.raises(OtherWeightsError, match=r"half of rollout\.timeout_s") as error:
        sampled(servers)
    assert f"the vLLM server at {servers.all[1].url} failed at /v1/completions (ReadTimeout" in str(error.value)
    assert "rollout.timeout_s is 1." in str(error.value)
    assert isinstance(error.value.__cause__, ServerError)


@pytest.mark.parametrize("fault", ["hangs", "dead"])
def test_server_without_statistics_still_samples(pool: tuple[VLLMServers, list[Echo]], fault: str) -> None:
    servers, echoes = pool
    servers._state_timeout_s = 0.3
    assert servers.prefix_cache() == dict.fromkeys(servers.all, (3.0, 4.0))
    if fault == "hangs":
        echoes[1].hangs = "/metrics"
    else:
        echoes[1].dead = True
    assert servers.prefix_cache() == {servers.all[0]: (3.0, 4.0)}
    assert servers.ready == servers.all
    echoes[1].dead = False
    assert sampled(servers) == PROMPTS
    assert len(echoes[1].sampled) == 1


def test_server_fault_is_logged_once_until_it_is_back(
    pool: tuple[VLLMServers, list[Echo]], caplog: pytest.LogCaptureFixture
) -> None:
    servers, echoes = pool
    echoes[1].dead = True
    for _ in range(2):
        servers.states()
    (record,) = caplog.records
    reported = f"left out until it answers at a weight sync: the vLLM server at {servers.all[1].url} failed at /coll"
    assert reported in record.getMessage()
    echoes[1].dead = False
    servers.states()
    assert len(servers.on_ready(VLLMServer.state)) == 2  # it got weights
    echoes[1].dead = True
    assert sampled(servers) == PROMPTS
    servers.states()
    assert [reported in each.getMessage() for each in caplog.records] == [True, True]


def test_pending_request_does_not_block_process_exit(
    pool: tuple[VLLMServers, list[Echo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, before, during = pool[0], set(threading.enumerate()), set[threading.Thread]()
    complete = VLLMServer.complete
    watched = lambda *given, **more: during.update(threading.enumerate()) or complete(*given, **more)  # noqa: E731
    monkeypatch.setattr(VLLMServer, "complete", watched)
    assert sampled(servers) == PROMPTS
    assert len(during - before) >= 2
    assert all(thread.daemon for thread in during - before)

"""The client of a vLLM server, against faulty answers; test_rollouts.py uses a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loopback import HANGS_UP, Answer, Received, answering

from think_as_locals.engines import vllm_server
from think_as_locals.engines.vllm_server import OtherWeightsError, VLLMServer
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
    asked: list[Received] = field(default_factory=list)

    def respond(self, request: Received) -> Answer:
        self.asked.append(request)
        return (*(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]), {})

    def client(self, *answers: tuple[int, Any], timeout_s: float = 30) -> VLLMServer:
        self.answers[:] = answers
        return VLLMServer(self.url, timeout_s)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setattr(vllm_server, "_PAUSE", 0.01)
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
    (request,) = server.asked  # a client error is not tried again
    assert (request.path, request.headers["Authorization"]) == ("/collective_rpc", "Bearer secret")
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


def test_workers_must_agree_and_empty_their_prefix_cache(server: Scripted) -> None:
    assert "differ" in fault(server.client(holds("a", "b")))
    with pytest.raises(ServerError, match="did not empty its prefix cache"):
        server.client(updating(False), DONE, updating(True), DONE, (200, {"success": False})).load_weights([], "new")


def test_complete_checks_the_weights_before_and_after(server: Scripted) -> None:
    client = server.client(holds("mine"), DIES, holds("mine"), ANSWERS, holds("mine"))
    [completion] = client.complete([[1]], "mine")
    assert (completion.token_ids, completion.log_probs) == ([5], [-0.5])
    server.answers[:] = [holds("mine"), ANSWERS, holds("another's")]
    with pytest.raises(OtherWeightsError, match="holds another's, expected mine"):
        client.complete([[1]], "mine")
    server.asked.clear()
    with pytest.raises(OtherWeightsError):
        server.client(holds("mine"), DIES, holds("those of the start")).complete([[1]], "mine")
    assert [asked.path for asked in server.asked] == ["/collective_rpc", "/v1/completions", "/collective_rpc"]


def test_requests_within_one_limit_share_its_timeout(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "_PAUSE", 1.0)
    client = server.client(DIES, timeout_s=1.2)
    with client.one_limit():
        assert "2 tries" in fault(client)
        assert "no time was left" in fault(client)
    assert len(server.asked) == 2
    assert "2 tries" in fault(client)


def test_weight_sync_is_one_update_and_tells_a_restart_from_a_fault(server: Scripted) -> None:
    half_done, loads = [updating(True), DONE], [updating(True), DONE]
    client = server.client(*half_done, DONE, *loads, *loads, *loads, (200, {"success": True}))
    client.load_weights([Path("a"), Path("b")], "new")
    finish, update, state = "/finish_weight_update", "/update_weights", "/collective_rpc"
    routes = [state, finish, "/start_weight_update", state, update, state, update, state, finish, "/reset_prefix_cache"]
    assert [asked.path for asked in server.asked] == routes  # one that another trainer left half done is ended first
    updates, finish_body = [server.asked[place].body for place in (4, 6)], server.asked[8].body
    assert updates == [{"update_info": {"file": file, "weights": "new"}} for file in "ab"]
    assert finish_body == {"weight_version": "new"}
    started = (updating(False), DONE, updating(True))
    with pytest.raises(OtherWeightsError, match="was restarted while it took weights"):
        server.client(*started, DIES, updating(False)).load_weights([Path("a")], "new")
    with pytest.raises(ServerError, match=r"No such file.*1 tries") as error:
        server.client(*started, (500, "No such file")).load_weights([Path("a")], "new")
    assert not isinstance(error.value, OtherWeightsError)

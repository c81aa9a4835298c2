"""The client of a vLLM server, against answers that go wrong; tests/training/test_engines.py has the real one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from think_as_locals.config.checks import load_recipe
from think_as_locals.engines.vllm_server import OtherWeightsError, VLLMServer
from think_as_locals.machine.preflight import missing_for
from think_as_locals.types import ServerError

DIES = 0  # instead of a status
SAMPLED = {"token_ids": [5], "logprobs": {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:5": -0.5}]}}
ANSWERS = (200, {"choices": [{"index": 0, **SAMPLED}]})


class _Scripted(BaseHTTPRequestHandler):
    answers: list[tuple[int, Any]]
    asked: list[tuple[str, str | None]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.asked.append((self.path, self.headers["Authorization"]))
        status, content = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if status == DIES:
            return
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[_Scripted]]]:
    """A server on loopback that gives the answers it is told to, the last one for ever."""
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    handler = type("Scripted", (_Scripted,), {"answers": [], "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


def fault(server: VLLMServer) -> str:
    with pytest.raises(ServerError) as caught:
        server.state()
    return str(caught.value)


def test_the_key_goes_with_every_request_and_into_no_message(scripted: tuple[str, type[_Scripted]]) -> None:
    url, handler = scripted
    handler.answers[:] = [(401, "no")]
    said = fault(VLLMServer(url, 30))
    assert handler.asked == [("/collective_rpc", "Bearer secret")]  # what is refused is not tried again
    assert "401" in said
    assert "secret" not in said


def test_a_server_that_fails_is_tried_thrice_and_may_recover(scripted: tuple[str, type[_Scripted]]) -> None:
    url, handler = scripted
    state = {"weights": "w", "dtype": "float32", "logprobs_mode": "processed_logprobs"}
    handler.answers[:] = [(500, "EngineDeadError"), (200, {"results": [state]})]
    assert VLLMServer(url, 30).state() == state
    handler.answers[:] = [(500, "EngineDeadError")]
    said = fault(VLLMServer(url, 30))
    assert "EngineDeadError" in said
    assert "3 tries" in said
    assert len(handler.asked) == 5


def test_workers_with_different_weights_are_not_asked(scripted: tuple[str, type[_Scripted]]) -> None:
    url, handler = scripted
    handler.answers[:] = [(200, {"results": [{"weights": "a"}, {"weights": "b"}]})]
    assert "differ" in fault(VLLMServer(url, 30))


def holds(weights: str) -> tuple[int, Any]:
    return 200, {"results": [{"weights": weights}]}


def test_completions_are_by_the_weights_that_were_asked_for(scripted: tuple[str, type[_Scripted]]) -> None:
    url, handler = scripted
    server = VLLMServer(url, 30)
    handler.answers[:] = [holds("mine"), (DIES, None), holds("mine"), ANSWERS, holds("mine")]
    [completion] = server.complete([[1]], "mine")
    assert (completion.token_ids, completion.log_probs) == ([5], [-0.5])
    handler.answers[:] = [holds("mine"), ANSWERS, holds("another's")]
    with pytest.raises(OtherWeightsError, match="holds another's, expected mine"):
        server.complete([[1]], "mine")


def test_a_server_that_was_started_anew_is_not_asked_to_sample(scripted: tuple[str, type[_Scripted]]) -> None:
    url, handler = scripted
    handler.answers[:] = [holds("mine"), (DIES, None), holds("those of the start")]
    with pytest.raises(OtherWeightsError):
        VLLMServer(url, 30).complete([[1]], "mine")
    assert [path for path, _ in handler.asked] == ["/collective_rpc", "/v1/completions", "/collective_rpc"]


def test_what_shares_a_limit_has_no_more_time_than_that(scripted: tuple[str, type[_Scripted]]) -> None:
    url, handler = scripted
    handler.answers[:] = [(DIES, None)]
    server = VLLMServer(url, 1.2)
    with server.one_limit():
        assert "2 tries" in fault(server)
        assert "no time was left" in fault(server)
    assert len(handler.asked) == 2
    assert "2 tries" in fault(server)


def test_a_prefix_cache_that_stays_is_an_error(scripted: tuple[str, type[_Scripted]]) -> None:
    url, handler = scripted
    handler.answers[:] = [(200, {"results": [None]}), (200, {"success": False})]
    with pytest.raises(ServerError, match="did not empty its prefix cache"):
        VLLMServer(url, 30).load_weights("somewhere")


def test_where_nobody_listens_it_ends_in_time_and_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    started = time.monotonic()
    said = fault(VLLMServer("http://127.0.0.1:9", 1.5))
    assert time.monotonic() - started < 4
    assert "http://127.0.0.1:9" in said
    assert "launch/vllm_server.sh" in said
    assert "rollout.timeout_s" in said


def test_preflight_says_what_vllm_server_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_recipe("recipes/quickstart.yaml", ["rollout=vllm_server", "rollout.url=http://127.0.0.1:9"])
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    [said] = missing_for(config)
    assert "VLLM_API_KEY is not set" in said
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    [said] = missing_for(config)
    assert "launch/vllm_server.sh" in said

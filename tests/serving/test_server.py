"""The server process: access control, shutdown, and a schemathesis run."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from conftest import launch
from reward_models.tiny import write_language_model
from served_app import serving, tal_serve
from serving.judges import Longest, judge_of, settings
from warm import processes_in

from think_as_locals.serving import server
from think_as_locals.serving.server import KEY_VARIABLE, load_server, required_key, serve
from think_as_locals.types import ConfigError

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


def test_unusable_address_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at host=127.0.0.1 port={port} .*in use.*: set port"):
            serve(settings(f"port={port}"))
    for host in ("192.0.2.1", "nowhere.invalid"):
        with pytest.raises(ConfigError, match=f"cannot listen at host={host} port=8000"):
            serve(settings(f"host={host}"))


@pytest.mark.parametrize("key", ["", "short", "sixteen letters with spaces", "sixteen-letters-é", "sixteen-letters-\n"])
def test_invalid_key_is_rejected_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(ConfigError, match="TAL_API_KEY holds no key: expected 16 or more printable ASCII") as raised:
        required_key("127.0.0.1")
    assert not key or key not in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["prot=1"], "prot: no such key; did you mean 'port'"),
        (["limits.items=0"], "limits.items: got 0, expected greater than 0"),
        (["port=70000"], "port: got 70000"),
        (["judge.protocol=pairwise"], "judge.protocol: got pairwise in 1 orders, expected listwise in one"),
        (["judge.prompt=listwize"], "judge.prompt: no 'listwize'; did you mean 'listwise'"),
        (["score.protocol=pointwise"], "score.protocol: pointwise needs score.orders=1 and score.prompt"),
        (["score.group_size=65"], "score.group_size: got 65, expected at most limits.responses, 64"),
        (["window_s=-1", "grace_s=0"], "grace_s: got 0"),
    ],
)
def test_invalid_settings_are_rejected_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_server("a/model", overrides)


def test_model_path_may_contain_special_characters() -> None:
    path = 'a folder/with = signs, "quotes", {braces} and letters like é\\'
    assert load_server(path).judge.path == path
    assert load_server("owner/name", ["judge.backend=vllm"]).judge.backend == "vllm"


@contextmanager
def served(patch: pytest.MonkeyPatch, engine: Longest, *overrides: str) -> Iterator[str]:
    """A server with all that `serve` asks of uvicorn, on a free port; yields its url."""
    asked: list[tuple[Any, dict[str, Any]]] = []
    patch.delenv(KEY_VARIABLE, raising=False)
    patch.setattr(server, "load_judge", lambda *_: nullcontext(judge_of(engine)))
    patch.setattr("signal.signal", lambda *_: None)
    patch.setattr("uvicorn.run", lambda app, **options: asked.append((app, options)))
    serve(settings("port=0", *overrides))
    ((app, options),) = asked
    with serving(app, **{name: value for name, value in options.items() if name not in ("port", "ws")}) as url:
        yield url


def test_idle_connections_are_closed_and_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch, Longest(), "limits.connections=8", "limits.headers_s=0.3") as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        began = time.monotonic()
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(8)]
            over = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(50)]
            assert not any(map(_received, over))
            assert time.monotonic() - began < 0.3
            slow = clients[0]  # a byte at a time, for ever
            with suppress(OSError):
                while time.monotonic() - began < 3:
                    slow.sendall(b"G")
                    time.sleep(0.05)
            assert time.monotonic() - began < 3
            assert not any(map(_received, clients[1:]))
        with httpx.Client() as kept:
            assert [kept.get(f"{url}/health").status_code for _ in range(3)] == [200] * 3


def _received(client: socket.socket) -> bytes:
    with suppress(ConnectionError):
        return client.recv(10)
    return b""


def test_long_running_request_is_not_closed_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Longest(held=True)
    with served(monkeypatch, engine, "limits.headers_s=0.1") as url:
        threading.Timer(0.6, engine.go_on.set).start()
        items = [{"prompt": "?", "responses": ["x", "yy"], "culture": None}]
        assert httpx.post(f"{url}/judge", json={"items": items}).status_code == 200


def test_forwarded_for_header_does_not_evade_the_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch, Longest(), "limits.requests_per_minute=2") as url, httpx.Client() as client:
        addresses = [{"X-Forwarded-For": f"10.0.0.{number}"} for number in range(3)]
        answers = [client.get(f"{url}/openapi.json", headers=headers) for headers in addresses]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert not any("server" in answer.headers for answer in answers)


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


@pytest.mark.slow
def test_schemathesis_finds_no_server_errors(warm_python: str) -> None:
    done = launch(warm_python, "tests/benchmarks/fuzz_server.py", "150", "--examples", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.rindex('{\n  "requests"') :])
    assert found["requests"] >= 150
    assert found["5xx"] == 0
    assert {"POST /judge 200", "POST /judge 422", "POST /score 200", "POST /score 422"} <= set(found["answers"])

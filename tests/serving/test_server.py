"""The server process: access control and shutdown."""

from __future__ import annotations

import re
import select
import signal
import socket
import threading
from pathlib import Path

import httpx
import psutil
import pytest
from reward_models.tiny import write_language_model
from served_app import tal_serve
from serving.judges import settings
from warm import processes_in

from think_as_locals.serving.app import KEY_VARIABLE, load_server, required_key, serve
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


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["prot=1"], "prot: no such key; did you mean 'port'"),
        (["port=70000"], "port: got 70000"),
        (["judge.protocol=pairwise"], "judge.protocol: got pairwise in 1 orders, expected listwise in one"),
        (["judge.prompt=listwize"], "judge.prompt: got 'listwize'; did you mean 'listwise'"),
        (["score.protocol=pointwise"], "score.protocol: pointwise needs score.orders=1 and score.prompt"),
        (["grace_s=0"], "grace_s: got 0"),
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

"""The client of a chat server, against real ones on loopback that are slow, busy, broken or gone."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from think_as_locals.engines import Engine, Messages, Sampling, chat_server
from think_as_locals.engines.chat_server import ChatServer, _retry_after
from think_as_locals.types import Rollout, ServerError

KEY = "sk-very-secret-0123456789"
GREEDY = Sampling(max_completion_length=16, seed=3)
LABELLED = Sampling(max_completion_length=16, seed=3, label_opening="<verdict>")

Answer = tuple[int, Any, dict[str, str]]
"""Status, content (text as it is, else JSON) and headers."""


def completion(text: str | None, finish_reason: str | None = "stop", **choice: Any) -> Answer:
    message = {"role": "assistant", "content": text}
    return 200, {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason, **choice}]}, {}


def echo(body: dict[str, Any], tries: int) -> Answer:
    return completion(f"re {body['messages'][-1]['content']}")


@dataclass
class Loopback:
    """A server that answers what `respond` says of a request and of how often it has come, and watches who asks."""

    respond: Callable[[dict[str, Any], int], Answer] = echo
    url: str = ""
    asked: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        loopback = self
        tries: Counter[str] = Counter()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with loopback.lock:
                    tries[json.dumps(body)] += 1
                    loopback.in_flight += 1
                    loopback.most = max(loopback.most, loopback.in_flight)
                    loopback.asked.append((self.path, self.headers["Authorization"], body))
                    loopback.times.append(time.monotonic())
                status, content, headers = loopback.respond(body, tries[json.dumps(body)])
                with loopback.lock:
                    loopback.in_flight -= 1
                if status == HANGS_UP:
                    self.close_connection = True
                    return
                said = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(said))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


HANGS_UP = 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no error here."""


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setattr(chat_server, "_FIRST_PAUSE", 0.02)
    server = Loopback()
    with _Server(("127.0.0.1", 0), server.handler()) as listening:
        server.url = f"http://127.0.0.1:{listening.server_port}/v1"
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.closing.set()
        listening.shutdown()


def client(server: Loopback, **changes: Any) -> ChatServer:
    settings: dict[str, Any] = {
        "url": server.url,
        "model": "judge",
        "key_variable": "MY_KEY",
        "concurrency": 4,
        "deadline_s": 20,
        "timeout_s": 20,
        "fields": {},
    }
    return ChatServer(**{**settings, **changes})


def conversations(count: int) -> list[Messages]:
    return [[{"role": "user", "content": str(number)}] for number in range(count)]


def complete(engine: Engine, count: int = 1, sampling: Sampling = GREEDY) -> dict[int, Rollout]:
    kept: dict[int, Rollout] = {}
    engine.sample(conversations(count), sampling, kept.__setitem__)
    return kept


def fault(engine: Engine, count: int = 1) -> str:
    with pytest.raises(ServerError) as caught:
        complete(engine, count)
    said = str(caught.value)
    assert KEY not in said + repr(caught.value) + repr(caught.value.__cause__)
    return said


def test_each_reply_is_kept_in_its_place_whatever_comes_first_and_no_more_are_asked_at_a_time(
    loopback: Loopback,
) -> None:
    def later_ones_first(body: dict[str, Any], tries: int) -> Answer:
        time.sleep(0.02 * (5 - int(body["messages"][-1]["content"]) % 5))
        return echo(body, tries)

    loopback.respond = later_ones_first
    order: list[int] = []
    kept: dict[int, Rollout] = {}

    def keep(place: int, reply: Rollout) -> None:
        order.append(place)
        kept[place] = reply

    client(loopback, concurrency=5).sample(conversations(30), GREEDY, keep)
    assert {place: reply.text for place, reply in kept.items()} == {i: f"re {i}" for i in range(30)}
    assert order != sorted(order)
    assert len(order) == len(loopback.asked) == 30
    assert loopback.most == 5


def test_a_request_says_what_to_sample_and_fields_change_it(loopback: Loopback) -> None:
    complete(client(loopback))
    path, key, body = loopback.asked[-1]
    assert (path, key) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert body == {
        "model": "judge",
        "messages": [{"role": "user", "content": "0"}],
        "temperature": 0.0,
        "max_tokens": 16,
        "seed": 3,
    }
    fields = {"max_tokens": None, "max_completion_tokens": 9, "temperature": None}
    complete(client(loopback, fields=fields, key_variable=None, url=loopback.url + "/"))
    path, key, body = loopback.asked[-1]
    assert (path, key) == ("/v1/chat/completions", None)
    assert (body.keys(), body["max_completion_tokens"]) == ({"model", "messages", "seed", "max_completion_tokens"}, 9)


def test_nothing_to_complete_is_done_at_once(loopback: Loopback) -> None:
    assert complete(client(loopback), 0) == {}
    assert loopback.asked == []


# --- what is tried again ---


@pytest.mark.parametrize("trouble", [(503, "busy", {}), (500, "", {}), (429, "slow down", {}), (HANGS_UP, "", {})])
def test_what_may_pass_is_tried_again(loopback: Loopback, trouble: Answer) -> None:
    loopback.respond = lambda body, tries: trouble if tries < 4 else echo(body, tries)
    assert complete(client(loopback), 3) == {i: Rollout(text=f"re {i}", finish_reason="stop") for i in range(3)}
    assert len(loopback.asked) == 12


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_wait_is_left_alone_for_so_long(loopback: Loopback, status: int) -> None:
    loopback.respond = lambda body, tries: (status, "", {"Retry-After": "1"}) if tries == 1 else echo(body, tries)
    assert len(complete(client(loopback, timeout_s=0.5))) == 1  # which is no silence
    first, second = loopback.times
    assert 1 <= second - first < 3


def test_a_server_that_asks_to_wait_past_the_deadline_is_not_waited_for(loopback: Loopback) -> None:
    loopback.respond = lambda body, tries: (429, "quota", {"Retry-After": "3600"})
    started = time.monotonic()
    said = fault(client(loopback))
    assert time.monotonic() - started < 5
    assert "429" in said
    assert "quota" in said
    assert "deadline_s" in said


def test_retry_after_is_a_number_or_a_date() -> None:
    def asked(value: str) -> float:
        return _retry_after(httpx.Response(429, headers={"Retry-After": value}))

    assert asked("7") == 7
    in_a_minute = datetime.now(UTC) + timedelta(seconds=60)
    assert asked(format_datetime(in_a_minute, usegmt=True)) == pytest.approx(60, abs=2)
    assert asked("Wed, 21 Oct 2015 07:28:00 GMT") == asked("-3") == asked("soon") == asked("nan") == 0
    assert _retry_after(httpx.Response(429)) == 0


def test_pauses_double_to_a_limit_and_are_the_same_for_the_same_seed(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pauses(seed: int) -> list[float]:
        slept: list[float] = []

        async def sleep(seconds: float, really: Any = asyncio.sleep) -> None:
            if seconds <= 30:  # the watch sleeps longer
                slept.append(seconds)
            await really(0 if seconds <= 30 else seconds)

        with monkeypatch.context() as patched:
            patched.setattr(chat_server.asyncio, "sleep", sleep)
            patched.setattr(chat_server, "_FIRST_PAUSE", 0.5)
            loopback.respond = lambda body, tries: (500, "", {}) if len(slept) < 12 else echo(body, tries)
            greedy = Sampling(max_completion_length=16, seed=seed)
            complete(client(loopback, deadline_s=1e6, timeout_s=1e6), sampling=greedy)
        return slept

    found = pauses(0)
    assert found == pauses(0)
    assert found != pauses(1)
    for tries, pause in enumerate(found):
        longest = min(0.5 * 2**tries, 30)
        assert longest / 2 <= pause <= longest


# --- what is not ---


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "key_variable"), (403, "key_variable"), (404, "url and model"), (400, "too long"), (422, "fields")],
)
def test_a_refusal_ends_everything_at_once_and_says_what_to_do(loopback: Loopback, status: int, remedy: str) -> None:
    loopback.respond = lambda body, tries: (status, {"error": f"Incorrect key provided: {KEY}"}, {})
    said = fault(client(loopback, concurrency=1), 9)
    assert len(loopback.asked) == 1
    assert f"got {status} with" in said
    assert "Incorrect key provided: ***" in said
    assert remedy in said


def test_a_key_that_is_echoed_is_in_no_message_not_even_in_part(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for length in range(280, 300, 3):
        loopback.respond = lambda body, tries, length=length: (401, "x" * length + KEY, {})
        assert KEY[:6] not in fault(client(loopback))
    assert KEY not in caplog.text
    assert KEY not in repr(client(loopback))


def test_redirects_are_not_followed(loopback: Loopback) -> None:
    loopback.respond = lambda body, tries: (307, "", {"Location": f"http://elsewhere.example/{KEY}"})
    said = fault(client(loopback))
    assert "redirect to http://elsewhere.example/***" in said
    assert len(loopback.asked) == 1


@pytest.mark.parametrize(
    "content",
    [
        "<html>",
        "[]",
        "null",
        {"error": {"message": "no"}},
        {"choices": []},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": [1]}}]},
        "[" * 100_000,
    ],
)
def test_what_is_no_completion_is_an_error(loopback: Loopback, content: Any) -> None:
    loopback.respond = lambda body, tries: (200, content, {})
    assert "expected a chat completion" in fault(client(loopback))
    assert len(loopback.asked) == 1


# --- what has no end ---


def test_a_conversation_without_a_reply_ends_at_its_deadline(loopback: Loopback) -> None:
    def hang(body: dict[str, Any], tries: int) -> Answer:
        if body["messages"][-1]["content"] == "2":
            loopback.closing.wait(30)
        return echo(body, tries)

    loopback.respond = hang
    started = time.monotonic()
    kept: dict[int, Rollout] = {}
    with pytest.raises(ServerError, match=r"no answer; 1 tries for conversation 2, which has 0\.5 s"):
        client(loopback, deadline_s=0.5, concurrency=2).sample(conversations(4), GREEDY, kept.__setitem__)
    assert time.monotonic() - started < 5
    assert {place: reply.text for place, reply in kept.items()} == {0: "re 0", 1: "re 1", 3: "re 3"}


def test_a_server_that_always_fails_is_given_up_at_the_deadline(loopback: Loopback) -> None:
    loopback.respond = lambda body, tries: (500, "EngineDeadError", {})
    said = fault(client(loopback, deadline_s=0.4))
    assert "EngineDeadError" in said
    assert len(loopback.asked) > 2


def test_a_silent_server_is_given_up_before_the_deadlines(loopback: Loopback) -> None:
    def fall_silent(body: dict[str, Any], tries: int) -> Answer:
        if int(body["messages"][-1]["content"]) > 2:
            loopback.closing.wait(30)
        return echo(body, tries)

    loopback.respond = fall_silent
    started = time.monotonic()
    assert "no answer for 0.6 s" in fault(client(loopback, timeout_s=0.6), 9)
    assert 0.6 <= time.monotonic() - started < 5


def test_where_nobody_listens_it_ends_in_time() -> None:
    started = time.monotonic()
    said = fault(client(Loopback(url="http://127.0.0.1:9/v1"), key_variable=None, timeout_s=0.6))
    assert "no answer for 0.6 s" in said
    said = fault(client(Loopback(url="http://127.0.0.1:9/v1"), key_variable=None, deadline_s=0.6))
    assert "ConnectError" in said
    assert time.monotonic() - started < 5


def test_what_was_kept_before_a_fault_stays_and_nothing_is_asked_after_it(loopback: Loopback) -> None:
    loopback.respond = lambda body, tries: (
        (400, "too long", {}) if body["messages"][-1]["content"] == "5" else echo(body, tries)
    )
    kept: dict[int, Rollout] = {}
    with pytest.raises(ServerError, match="too long"):
        client(loopback, concurrency=1).sample(conversations(50), GREEDY, kept.__setitem__)
    assert sorted(kept) == [0, 1, 2, 3, 4]
    assert len(loopback.asked) == 6


def test_an_error_of_keep_comes_through_as_it_is(loopback: Loopback) -> None:
    def full(place: int, reply: Rollout) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        client(loopback).sample(conversations(9), GREEDY, full)


@pytest.fixture
def heeded_ctrl_c() -> Iterator[None]:
    """As in a terminal: processes that are started by others may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_ends_it_with_all_that_was_in_flight(loopback: Loopback) -> None:
    kept: dict[int, Rollout] = {}

    def interrupt(place: int, reply: Rollout) -> None:
        kept[place] = reply
        if len(kept) == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        client(loopback, concurrency=1).sample(conversations(50), GREEDY, interrupt)
    assert sorted(kept) == [0, 1, 2]
    assert len(loopback.asked) <= 4


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_ends_it_in_a_notebook_too(loopback: Loopback) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(place: int, reply: Rollout) -> None:
        if place == 2:
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.05)

    async def cell() -> None:
        client(loopback, concurrency=1).sample(conversations(100), GREEDY, interrupt)

    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    loop.close()
    assert len(loopback.asked) < 50


# --- what a reply says ---


def test_empty_content_is_an_empty_reply_with_its_reason(loopback: Loopback) -> None:
    loopback.respond = lambda body, tries: completion(None, "length")
    assert complete(client(loopback)) == {0: Rollout(text="", finish_reason="length")}
    loopback.respond = lambda body, tries: (200, {"choices": [{"message": {}, "finish_reason": "content_filter"}]}, {})
    assert complete(client(loopback)) == {0: Rollout(text="", finish_reason="content_filter")}
    loopback.respond = lambda body, tries: completion("x", None)
    assert complete(client(loopback))[0].finish_reason != "stop"


def test_half_of_a_surrogate_pair_can_be_written_to_a_file(loopback: Loopback) -> None:
    loopback.respond = lambda body, tries: completion("สวัสดี \ud83d")
    assert complete(client(loopback))[0].text == "สวัสดี ?"


def a_token(text: str, log_prob: float, **others: float) -> dict[str, Any]:
    near = [{"token": token, "logprob": value} for token, value in others.items()]
    return {"token": text, "logprob": log_prob, "top_logprobs": near}


def test_labels_have_the_log_probabilities_of_the_verdicts_place(loopback: Loopback) -> None:
    tokens = [
        a_token("A", -9.0, A=-9.0, B=-8.0),
        *(a_token(text, -0.1) for text in ("<", "ver", "dict", ">")),
        a_token("B", -0.2, B=-0.2, A=-1.7, b=-5.0),
        a_token("</verdict>", 0.0),
    ]
    loopback.respond = lambda body, tries: completion("...", logprobs={"content": tokens})
    assert complete(client(loopback), sampling=LABELLED)[0].label_log_probs == {"A": -1.7, "B": -0.2}
    assert loopback.asked[-1][2]["logprobs"] is True
    assert loopback.asked[-1][2]["top_logprobs"] == 20
    assert complete(client(loopback))[0].label_log_probs == {}
    assert "logprobs" not in loopback.asked[-1][2]


@pytest.mark.parametrize("log_prob", [float("nan"), float("-inf")])
def test_a_log_probability_that_is_no_number_is_none(loopback: Loopback, log_prob: float) -> None:
    tokens = [a_token("<verdict>", 0.0), a_token("B", -0.2, B=-0.2, A=log_prob)]
    loopback.respond = lambda body, tries: completion("...", logprobs={"content": tokens})
    assert complete(client(loopback), sampling=LABELLED)[0].label_log_probs == {"B": -0.2}


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"content": None},
        {"content": [a_token("A", -0.5, A=-0.5)]},
        {"content": [a_token("<verdict>", 0.0), a_token("A<", -0.5)]},
    ],
)
def test_without_a_token_that_is_just_the_label_there_are_none(loopback: Loopback, logprobs: Any) -> None:
    loopback.respond = lambda body, tries: completion("A", logprobs=logprobs)
    replies = complete(client(loopback), sampling=LABELLED)
    assert replies == {0: Rollout(text="A", finish_reason="stop")}


# --- what cannot be ---


@pytest.mark.parametrize("key", ["", "  ", "two words", "secrét", "line\nbreak"])
def test_a_key_that_is_none_is_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ServerError, match="MY_KEY") as caught:
        client(Loopback(url="http://127.0.0.1:9/v1"))
    assert not key.strip() or key not in str(caught.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ServerError, match="MY_KEY is not set"):
        client(Loopback(url="http://127.0.0.1:9/v1"))


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000/v1", "ftp://x/v1", "http://", "http://me:pass@x/v1", "http://x:y/v1", "http://x/v1?key=pass"],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ServerError, match="no url of a server") as caught:
        client(Loopback(url=url), key_variable=None)
    assert "pass" not in str(caught.value)

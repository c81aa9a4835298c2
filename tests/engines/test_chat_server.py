"""The chat server client, against loopback servers that are slow, busy, broken or gone."""

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
from typing import Any

import pytest
from loopback import HANGS_UP, Answer, Received, answering, completion

from think_as_locals.engines import Engine, Messages, Sampling, chat_server, sample_all
from think_as_locals.engines.chat_server import ChatServer
from think_as_locals.types import Rollout, ServerError, TooLongError

KEY = "sk-very-secret-0123456789"
GREEDY = Sampling(max_completion_length=16, seed=3)
LABELLED = Sampling(max_completion_length=16, seed=3, label_opening="<verdict>")
CLOSED_URL = "http://127.0.0.1:9/v1"

Respond = Callable[[str, int], Answer]
"""The answer to the text of a conversation, and to how often it has come."""


def echo(text: str, tries: int = 1) -> Answer:
    return completion(f"re {text}")


def echoed(*places: int) -> dict[int, Rollout]:
    return {place: Rollout(text=f"re {place}", finish_reason="stop") for place in places}


@dataclass
class Loopback:
    """A server that watches who asks."""

    respond: Respond = echo
    url: str = ""
    asked: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)
    tries: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    most: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Received) -> Answer:
        sent = json.dumps(request.body)
        with self.lock:
            self.tries[sent] += 1
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self.asked.append((request.path, request.headers["Authorization"], request.body))
        found = self.respond(request.body["messages"][-1]["content"], self.tries[sent])
        with self.lock:
            self.in_flight -= 1
        return found


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setattr(chat_server, "_FIRST_PAUSE_S", 0.01)
    server = Loopback()
    with answering(server.answer) as url:
        server.url = f"{url}/v1"
        yield server
        server.closing.set()


def client(url: str, **changes: Any) -> ChatServer:
    limits: dict[str, Any] = {"concurrency": 4, "deadline_s": 20, "max_retries": 8, "fields": {}}
    return ChatServer(**{"url": url, "model": "judge", "key_variable": "MY_KEY", **limits, **changes})


def conversations(count: int) -> list[Messages]:
    return [[{"role": "user", "content": str(number)}] for number in range(count)]


def one(loopback: Loopback, respond: Respond | Answer, sampling: Sampling = GREEDY) -> Rollout:
    """What becomes of an answer."""
    loopback.respond = respond if callable(respond) else lambda *_: respond
    (rollout,) = sample_all(client(loopback.url), conversations(1), sampling)
    return rollout


def fault(engine: Engine, count: int = 1) -> tuple[str, dict[int, Rollout]]:
    """The error's message, and what was delivered before."""
    kept: dict[int, Rollout] = {}
    with pytest.raises(ServerError) as caught:
        kept.update(engine.sample(conversations(count), GREEDY))
    message = str(caught.value)
    assert KEY not in message + repr(caught.value) + repr(caught.value.__cause__)
    return message, kept


def test_completions_keep_their_order_and_concurrency_is_limited(loopback: Loopback) -> None:
    def later_ones_first(text: str, tries: int) -> Answer:
        time.sleep(0.02 * (5 - int(text) % 5))
        return echo(text)

    loopback.respond = later_ones_first
    kept: dict[int, Rollout] = {}
    kept.update(client(loopback.url, concurrency=5).sample(conversations(30), GREEDY))
    assert kept == echoed(*range(30))
    assert list(kept) != sorted(kept)
    assert len(loopback.asked) == 30
    assert loopback.most == 5


def test_request_holds_sampling_settings_and_fields_override_them(loopback: Loopback) -> None:
    sample_all(client(loopback.url), conversations(1), GREEDY)
    settings = {"model": "judge", "temperature": 0.0, "max_tokens": 16, "seed": 3}
    body = {**settings, "messages": [{"role": "user", "content": "0"}]}
    assert loopback.asked.pop() == ("/v1/chat/completions", f"Bearer {KEY}", body)
    fields = {"max_tokens": None, "max_completion_tokens": 9, "temperature": None}
    sample_all(client(loopback.url + "/", fields=fields, key_variable=None), conversations(1), GREEDY)
    path, key, body = loopback.asked.pop()
    assert (path, key) == ("/v1/chat/completions", "Bearer none")
    assert (body.keys(), body["max_completion_tokens"]) == ({"model", "messages", "seed", "max_completion_tokens"}, 9)


@pytest.mark.parametrize("trouble", [(503, "busy", {}), (429, "slow down", {"Retry-After": "0.1"}), (HANGS_UP, "", {})])
def test_transient_error_is_retried(loopback: Loopback, trouble: Answer) -> None:
    loopback.respond = lambda text, tries: trouble if tries == 1 else echo(text)
    kept: dict[int, Rollout] = {}
    kept.update(client(loopback.url).sample(conversations(3), GREEDY))
    assert kept == echoed(0, 1, 2)
    assert len(loopback.asked) == 6


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "key_variable"), (403, "key_variable"), (404, "url and model"), (400, "fields")]
)
def test_client_error_keeps_what_is_there_stops_at_once_and_names_a_remedy(
    loopback: Loopback, status: int, remedy: str
) -> None:
    refusal = status, {"error": f"Incorrect key provided: {KEY}"}, {}
    loopback.respond = lambda text, tries: refusal if text == "2" else echo(text)
    message, kept = fault(client(loopback.url, concurrency=1), 9)
    assert kept == echoed(0, 1)
    assert len(loopback.asked) == 3
    for part in (str(status), "Incorrect key provided: ***", remedy):
        assert part in message


def test_echoed_key_is_redacted_from_messages_and_logs(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for length in range(280, 300, 3):
        loopback.respond = lambda *_, length=length: (401, "x" * length + KEY, {})
        assert KEY[:6] not in fault(client(loopback.url))[0]
    assert KEY not in caplog.text
    assert KEY not in repr(client(loopback.url))


@pytest.mark.parametrize("content", ["[" * 100_000, {"choices": [{"message": {"content": [1]}}]}], ids=["deep", "list"])
def test_completion_of_another_shape_is_rejected_at_once(loopback: Loopback, content: Any) -> None:
    loopback.respond = lambda *_: (200, content, {"Content-Type": "application/json"})
    assert "expected a chat completion" in fault(client(loopback.url))[0]
    assert len(loopback.asked) == 1


@pytest.mark.parametrize(
    "content",
    [
        *({"choices": choices} for choices in (None, [], [{"message": None}], [None], "x")),
        *([], None, "<html>Bad gateway</html>", "[" * 100_000),
        {"error": {"code": 502, "message": "Provider returned error"}},
        {"error": {"code": 502}, "choices": [{"message": {"content": ""}, "finish_reason": "error"}]},
        {"choices": [{"error": {"code": 502}, "message": {"content": ""}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]},
    ],
)
def test_success_without_a_choice_is_retried_and_its_error_quoted(loopback: Loopback, content: Any) -> None:
    loopback.respond = lambda text, tries: (200, content, {}) if tries == 1 else echo(text)
    assert sample_all(client(loopback.url), conversations(1), GREEDY) == [*echoed(0).values()]
    assert len(loopback.asked) == 2
    loopback.respond = lambda *_: (200, content, {})
    message, _ = fault(client(loopback.url, max_retries=1, key_variable=None))
    assert str(content)[:30] in message
    assert "expected a chat completion" in message


FILTERED = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy"


@pytest.mark.parametrize("status", [400, 200])
def test_refused_prompt_stops_no_other_and_is_named(loopback: Loopback, status: int) -> None:
    refusal: Answer = (status, {"error": {"message": FILTERED, "code": "content_filter"}}, {})
    loopback.respond = lambda text, _: refusal if text == "1" else echo(text)
    kept: dict[int, Rollout] = {}
    with pytest.raises(TooLongError, match=r"the server at .* refuses a prompt by its content filter") as caught:
        kept.update(client(loopback.url).sample(conversations(3), GREEDY))
    assert kept == echoed(0, 2)
    assert (caught.value.indices, caught.value.refused) == ((1,), {1})
    assert len(loopback.asked) == 3


@pytest.mark.parametrize(
    ("error", "refused"),  # an answer of status 200 has choices
    [
        ({"code": "invalid_prompt", "message": "flagged as potentially violating our usage policy."}, 1),
        ({"message": "Content Exists Risk", "type": "invalid_request_error"}, 1),  # DeepSeek
        ({"status": "PROHIBITED_CONTENT"}, 1),  # Gemini
        ({"code": "1301", "message": "The system detected sensitive content"}, 1),  # GLM
        ({"message": "Unknown parameter: 'moderation_level'"}, 0),
        ({"code": 1301, "message": "unsafe"}, 1),
        ({"code": "DataInspectionFailed", "message": "Output data may contain sensitive content."}, 1),
        ({"message": "Requires moderation", "metadata": {"flagged_input": "I got an invalid argument"}}, 1),  # echoed
        ({"message": "unsupported field content_filter"}, 0),
        ({"message": "Unrecognized request argument supplied: moderation_level"}, 0),
        ({"message": "It is not permitted by our content policy"}, 1),
        ({"code": "SensitiveContentDetected", "message": "The request failed."}, 1),  # Volcengine
        ({"message": "The request was rejected because it was considered high risk"}, 1),  # Moonshot
        ({"message": "blocked by guardrail"}, 1),
        ({"choices": [{"message": None, "finish_reason": "content_filter"}]}, 1),
        ({"choices": None, "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, 1),
    ],
)
def test_content_filters_of_hosted_models_are_known(loopback: Loopback, error: dict[str, Any], refused: int) -> None:
    loopback.respond = lambda *_: (200, error, {}) if "choices" in error else (400, {"error": error}, {})
    with pytest.raises(TooLongError if refused else ServerError, match="by its content filter" if refused else "400"):
        list(client(loopback.url).sample(conversations(1), GREEDY))
    assert len(loopback.asked) == 1


def test_unanswered_conversation_fails_at_its_deadline(loopback: Loopback) -> None:
    def hang(text: str, tries: int) -> Answer:
        if text == "2":
            loopback.closing.wait(30)
        return echo(text)

    loopback.respond = hang
    started = time.monotonic()
    message, kept = fault(client(loopback.url, deadline_s=1, concurrency=2), 4)
    assert "no completion for 1 s" in message
    assert time.monotonic() - started < 5
    assert kept == echoed(0, 1, 3)


@pytest.fixture
def sigint_raises() -> Iterator[None]:
    """As in a terminal: processes that are started by others may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_raises")
@pytest.mark.parametrize("is_notebook", [False, True])
def test_ctrl_c_cancels_requests_in_flight(loopback: Loopback, is_notebook: bool) -> None:
    kept: dict[int, Rollout] = {}

    def ask() -> None:
        for place, reply in client(loopback.url, concurrency=1).sample(conversations(100), GREEDY):
            kept[place] = reply
            if len(kept) == 3:
                signal.raise_signal(signal.SIGINT)

    async def cell() -> None:
        ask()

    loop = asyncio.new_event_loop()  # `asyncio.run` would have a handler of its own
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell()) if is_notebook else ask()
    loop.close()
    assert sorted(kept) == [0, 1, 2]
    assert len(loopback.asked) < 50


def test_requests_are_cancelled_if_no_more_completions_are_read(loopback: Loopback) -> None:
    for _ in client(loopback.url, concurrency=1).sample(conversations(100), GREEDY):
        break
    assert len(loopback.asked) < 50


def test_rollout_holds_text_and_finish_reason(loopback: Loopback) -> None:
    assert one(loopback, completion(None, "length")) == Rollout(text="", finish_reason="length")
    filtered = {"choices": [{"message": {}, "finish_reason": "content_filter"}]}
    assert one(loopback, (200, filtered, {})) == Rollout(text="", finish_reason="content_filter")
    assert one(loopback, completion("สวัสดี \ud83d")).text == "สวัสดี ?"  # no file could hold half of a surrogate pair


STOPS = ("stop", "eos_token", "eos", "end_turn", "end_of_turn", "STOP", "stop_sequence", "COMPLETE")
STOPS += ("completed", "FinishReason.STOP", "stop_token", "stop_string", "end_of_text")
CUTS = ("length", "max_tokens", "content_filter", "MAX_TOKENS", "tool_calls")


@pytest.mark.parametrize(
    ("text", "reason", "taken_as", "said"),
    [
        *(("x", reason, "stop", "") for reason in STOPS),
        *(("x", reason, reason, "") for reason in CUTS),
        *(("x", reason, "stop", "finish_reason is null") for reason in (None, "", "null")),
        ("", None, "None", ""),
        ("x", "wound_down", "wound_down", "wound_down"),
    ],
)
def test_only_an_end_by_itself_is_a_stop_and_an_unknown_one_is_said(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, text: str, reason: str | None, taken_as: str, said: str
) -> None:
    assert one(loopback, completion(text, reason)).finish_reason == taken_as
    assert said in caplog.text if said else not caplog.text


def test_reasoning_alone_is_no_judgement_and_said(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("reasoning_content", "reasoning"):
        answer = {"choices": [{"message": {"content": None, name: "B?"}, "finish_reason": "length"}]}
        assert one(loopback, (200, answer, {})) == Rollout(text="", finish_reason="length")
    assert caplog.text.count("reasoning_content") == 2


def a_token(text: str, log_prob: float, **others: float) -> dict[str, Any]:
    near = [{"token": token, "logprob": value} for token, value in others.items()]
    return {"token": text, "logprob": log_prob, "top_logprobs": near}


def test_label_log_probs_come_from_the_verdict_token(loopback: Loopback) -> None:
    tokens = [
        a_token("A", -9.0, A=-9.0, B=-8.0),
        *(a_token(text, -0.1) for text in ("<", "ver", "dict", ">")),
        a_token("B", -0.2, B=-0.2, A=-1.7, b=-5.0),
        a_token("</verdict>", 0.0),
    ]
    answer = completion("...", logprobs={"content": tokens})
    assert one(loopback, answer, LABELLED).label_log_probs == {"A": -1.7, "B": -0.2}
    _, _, body = loopback.asked.pop()
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    assert one(loopback, answer).label_log_probs == {}
    assert "logprobs" not in loopback.asked.pop()[2]


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        *(({"content": [a_token("<verdict>", 0.0), a_token("B", -0.2, B=-0.2, A=float(bad))]}, {"B": -0.2})
          for bad in ("nan", "-inf")),
        *((nothing, {}) for nothing in (None, {"content": None}, {"content": [a_token("A", -0.5, A=-0.5)]})),
        ({"content": [a_token("<verdict>", 0.0), a_token("A<", -0.5)]}, {}),
    ],
)  # fmt: skip
def test_label_log_probs_are_finite_ones_of_a_label_token(
    loopback: Loopback, logprobs: Any, expected: dict[str, float]
) -> None:
    rollout = one(loopback, completion("A", logprobs=logprobs), LABELLED)
    assert rollout == Rollout(text="A", finish_reason="stop", label_log_probs=expected)


@pytest.mark.parametrize("key", ["", "  ", "secrét", "line\nbreak"])
def test_invalid_key_is_rejected_without_being_repeated(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ServerError, match="MY_KEY") as caught:
        client(CLOSED_URL)
    assert not key.strip() or key not in str(caught.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ServerError, match="MY_KEY is not set"):
        client(CLOSED_URL)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000/v1", "ftp://x/v1", "http://", "http://me:pass@x/v1", "http://x/v1?key=pass"]
)
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(ServerError, match="url: expected") as caught:
        client(url, key_variable=None)
    assert "pass" not in str(caught.value)

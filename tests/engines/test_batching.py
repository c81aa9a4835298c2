"""Calls of several threads in one call of the engine: who goes with whom, and what one call's fault does to others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle

import pytest

from think_as_locals.engines import Messages, Sampling, sample_all
from think_as_locals.engines.batching import MicroBatches
from think_as_locals.engines.engine import Deliver
from think_as_locals.types import DataError, ModelError, Rollout

GREEDY = Sampling(max_completion_length=4)


@dataclass
class Echo:
    """An engine that repeats what it is asked, last one first; it notes its calls and may be held up."""

    calls: list[list[str]] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    special_tokens: tuple[str, ...] = ("<|end|>",)

    def sample(self, conversations: Sequence[Messages], sampling: Sampling, deliver: Deliver) -> None:
        texts = [messages[0]["content"] for messages in conversations]
        self.calls.append(texts)
        self.entered.set()
        assert self.go_on.wait(10)
        if "too long" in texts:
            raise DataError("the prompt is longer than the model's context")
        if "broken" in texts:
            raise ValueError("a fault of the engine's own")
        for place, text in reversed(list(enumerate(texts))):
            if text != "forgotten":
                deliver(place, Rollout(text=f"{text} {sampling.max_completion_length}", finish_reason="stop"))


def ask(batches: MicroBatches, *texts: str, sampling: Sampling = GREEDY) -> list[str]:
    conversations = [[{"role": "user", "content": text}] for text in texts]
    return [rollout.text for rollout in sample_all(batches, conversations, sampling)]


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def batches(echo: Echo) -> Iterator[MicroBatches]:
    """Without a window, and as large as they come."""
    batches = MicroBatches(echo, window_s=0.0, max_size=100)
    yield batches
    batches.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def while_busy(
    batches: MicroBatches, echo: Echo, pool: ThreadPoolExecutor, *asked: str, samplings: Sequence[Sampling] = (GREEDY,)
) -> list[Future[list[str]]]:
    """Calls, of words, that come while the engine is at work on another; then it goes on."""
    first = pool.submit(ask, batches, "first")
    assert echo.entered.wait(10)
    waiting = [
        pool.submit(ask, batches, *words.split(","), sampling=sampling)
        for words, sampling in zip(asked, cycle(samplings), strict=False)
    ]
    while batches._jobs.qsize() < len(asked):
        time.sleep(0.001)
    echo.go_on.set()
    assert first.result(10) == ["first 4"]
    return waiting


def test_calls_within_the_window_are_one_call_and_each_gets_its_own_replies(
    echo: Echo, pool: ThreadPoolExecutor
) -> None:
    echo.go_on.set()
    batches = MicroBatches(echo, window_s=0.5, max_size=24)
    asked = [[f"{i}.{j}" for j in range(i % 3 + 1)] for i in range(12)]
    found = list(pool.map(lambda texts: ask(batches, *texts), asked))
    assert found == [[f"{text} 4" for text in texts] for texts in asked]
    assert [sorted(call) for call in echo.calls] == [sorted(text for texts in asked for text in texts)]
    assert batches.special_tokens == ("<|end|>",)
    batches.close()


def test_without_a_window_calls_that_come_while_the_engine_is_busy_go_together(
    batches: MicroBatches, echo: Echo, pool: ThreadPoolExecutor
) -> None:
    waiting = while_busy(batches, echo, pool, *map(str, range(9)))
    assert [each.result(10) for each in waiting] == [[f"{i} 4"] for i in range(9)]
    assert [len(call) for call in echo.calls] == [1, 9]


def test_a_batch_is_no_longer_than_it_may_be_and_a_call_is_never_divided(echo: Echo, pool: ThreadPoolExecutor) -> None:
    batches = MicroBatches(echo, window_s=0.0, max_size=4)
    waiting = while_busy(batches, echo, pool, *["a,b,c"] * 4)
    assert all(each.result(10) == ["a 4", "b 4", "c 4"] for each in waiting)
    assert [len(call) for call in echo.calls] == [1, 6, 6]
    batches.close()


def test_calls_that_sample_otherwise_are_calls_of_their_own(
    batches: MicroBatches, echo: Echo, pool: ThreadPoolExecutor
) -> None:
    samplings = [GREEDY, Sampling(max_completion_length=9)]
    waiting = while_busy(batches, echo, pool, *"xxxx", samplings=samplings)
    assert [each.result(10) for each in waiting] == [["x 4"], ["x 9"]] * 2
    assert sorted(map(len, echo.calls)) == [1, 2, 2]


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ("broken", ModelError, "the engine failed: ValueError"),
        ("forgotten", ModelError, "the engine failed: KeyError"),
        ("too long", DataError, "longer than the model's context"),  # the caller's fault
    ],
)
def test_what_the_engine_cannot_take_fails_alone(
    batches: MicroBatches, echo: Echo, pool: ThreadPoolExecutor, bad: str, kind: type[Exception], message: str
) -> None:
    good, fails, other = while_busy(batches, echo, pool, "a", bad, "b")
    assert (good.result(10), other.result(10)) == (["a 4"], ["b 4"])
    with pytest.raises(kind, match=message):
        fails.result(10)
    assert ask(batches, "after") == ["after 4"]


def test_closing_ends_what_is_in_flight_and_refuses_the_rest(
    batches: MicroBatches, echo: Echo, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(ask, batches, "first")
    assert echo.entered.wait(10)
    waiting = pool.submit(ask, batches, "waiting")
    while not batches._jobs.qsize():
        time.sleep(0.001)
    closing = pool.submit(batches.close)
    while not batches._closed:
        time.sleep(0.001)
    with pytest.raises(ModelError, match="the server is stopping"):
        ask(batches, "late")
    echo.go_on.set()
    closing.result(10)
    assert first.result(10) == ["first 4"]
    with pytest.raises(ModelError, match="closed before its turn"):
        waiting.result(10)
    assert echo.calls == [["first"]]

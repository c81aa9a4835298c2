"""One engine for many threads: calls that wait for it share a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from reward_models.scripted import Scripted

from think_as_locals.engines import Messages, Sampling, sample_all
from think_as_locals.engines.engine import Sampled
from think_as_locals.serving.app import Batches
from think_as_locals.types import DataError, Rollout


@dataclass
class Echo(Scripted):
    """An engine that repeats what it is asked, last one first, once it may go on."""

    go_on: threading.Event = field(default_factory=threading.Event)

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        texts = [messages[0]["content"] for messages in conversations]
        self.calls.append(list(conversations))
        assert self.go_on.wait(10)
        if "too long" in texts:
            raise DataError("too long")
        for place, text in reversed(list(enumerate(texts))):
            yield place, Rollout(text=f"{text} {sampling.max_completion_length}", finish_reason="stop")


Answers = Callable[..., list[Future[list[str]]]]


@pytest.fixture
def answers() -> Iterator[tuple[Echo, Answers]]:
    """An engine, and what becomes of calls that all come while it is at work on another."""
    echo = Echo()
    batches = Batches(echo)

    def ask(texts: Sequence[str], limit: int) -> list[str]:
        conversations = [[{"role": "user", "content": text}] for text in texts]
        return [one.text for one in sample_all(batches, conversations, Sampling(max_completion_length=limit))]

    with ThreadPoolExecutor(32) as pool:

        def answer(*calls: tuple[str, ...], limits: Sequence[int] = ()) -> list[Future[list[str]]]:
            first = pool.submit(ask, ["first"], 4)
            while not echo.calls:
                time.sleep(0.001)
            waiting = list(map(pool.submit, [ask] * len(calls), calls, limits or [4] * len(calls)))
            while len(batches._waiting) < len(calls):
                time.sleep(0.001)
            echo.go_on.set()
            assert first.result(10) == ["first 4"]
            return waiting

        yield echo, answer


def test_calls_waiting_for_a_busy_engine_share_one_batch(answers: tuple[Echo, Answers]) -> None:
    echo, answer = answers
    asked = [tuple(f"{i}.{j}" for j in range(i % 3 + 1)) for i in range(12)]
    assert [each.result(10) for each in answer(*asked)] == [[f"{text} 4" for text in texts] for texts in asked]
    assert [len(call) for call in echo.calls] == [1, 24]


def test_calls_with_different_sampling_are_not_batched_together(answers: tuple[Echo, Answers]) -> None:
    echo, answer = answers
    assert [each.result(10) for each in answer(*[("x",)] * 4, limits=[4, 9, 4, 9])] == [["x 4"], ["x 9"]] * 2
    assert sorted(map(len, echo.calls)) == [1, 2, 2]


def test_failing_call_does_not_affect_others_in_its_batch(answers: tuple[Echo, Answers]) -> None:
    good, fails, other = answers[1](("a",), ("too long",), ("b",))
    assert (good.result(10), other.result(10)) == (["a 4"], ["b 4"])
    with pytest.raises(DataError):
        fails.result(10)

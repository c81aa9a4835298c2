"""Micro-batching: calls of several threads share one engine call, and one call's fault does not affect others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from think_as_locals.engines import Messages, Sampling, sample_all
from think_as_locals.engines.batching import MicroBatches
from think_as_locals.engines.engine import Deliver
from think_as_locals.types import DataError, Item, ModelError, Rollout

GREEDY = Sampling(max_completion_length=4)


class Echo:
    """An engine that repeats what it is asked, last one first; it notes its calls, and may be held up.

    One that `can_end` ends the call in flight when it is closed, as vLLM does.
    """

    special_tokens = ("<|end|>",)

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool, self.calls, self.can_end, self.ended = pool, list[list[str]](), False, False
        self.entered, self.go_on = threading.Event(), threading.Event()

    def check_texts(self, items: Iterable[Item]) -> None:
        pass

    def sample(self, conversations: Sequence[Messages], sampling: Sampling, deliver: Deliver) -> None:
        texts = [messages[0]["content"] for messages in conversations]
        self.calls.append(texts)
        self.entered.set()
        assert self.go_on.wait(10)
        if self.ended:
            raise ModelError("it was stopped")
        if "too long" in texts:
            raise DataError("the prompt is longer than the model's context")
        if "broken" in texts:
            raise ValueError("a fault of the engine's own")
        for place, text in reversed(list(enumerate(texts))):
            if text != "forgotten":
                deliver(place, Rollout(text=f"{text} {sampling.max_completion_length}", finish_reason="stop"))

    def close(self) -> None:
        if self.can_end:
            self.ended = True
            self.go_on.set()

    def hold(
        self, batches: MicroBatches, *calls: tuple[str, ...], limits: Sequence[int] = ()
    ) -> list[Future[list[str]]]:
        """Calls that come while it is at work on another."""
        first = self.pool.submit(ask, batches, "first")
        assert self.entered.wait(10)
        samplings = [Sampling(max_completion_length=limit) for limit in limits or [4] * len(calls)]
        asked = zip(calls, samplings, strict=True)
        waiting = [self.pool.submit(ask, batches, *texts, sampling=sampling) for texts, sampling in asked]
        while batches._jobs.qsize() < len(calls):
            time.sleep(0.001)
        return [first, *waiting]

    def answer(
        self, batches: MicroBatches, *calls: tuple[str, ...], limits: Sequence[int] = ()
    ) -> list[Future[list[str]]]:
        """As `hold`; then it goes on."""
        first, *waiting = self.hold(batches, *calls, limits=limits)
        self.go_on.set()
        assert first.result(10) == ["first 4"]
        return waiting


def ask(batches: MicroBatches, *texts: str, sampling: Sampling = GREEDY) -> list[str]:
    conversations = [[{"role": "user", "content": text}] for text in texts]
    return [rollout.text for rollout in sample_all(batches, conversations, sampling)]


@pytest.fixture
def echo() -> Iterator[Echo]:
    with ThreadPoolExecutor(32) as pool:
        yield Echo(pool)


@pytest.fixture
def batches(echo: Echo) -> Iterator[MicroBatches]:
    """Without a window."""
    batches = MicroBatches(echo, window_s=0.0, max_size=10)
    yield batches
    batches.close()


def test_calls_within_the_window_share_one_batch(echo: Echo) -> None:
    echo.go_on.set()
    batches = MicroBatches(echo, window_s=0.5, max_size=24)
    asked = [[f"{i}.{j}" for j in range(i % 3 + 1)] for i in range(12)]
    found = list(echo.pool.map(lambda texts: ask(batches, *texts), asked))
    assert found == [[f"{text} 4" for text in texts] for texts in asked]
    assert [sorted(call) for call in echo.calls] == [sorted(text for texts in asked for text in texts)]
    assert batches.special_tokens == ("<|end|>",)
    batches.close()


def test_calls_waiting_for_a_busy_engine_share_one_batch(echo: Echo, batches: MicroBatches) -> None:
    waiting = echo.answer(batches, *[(str(i),) for i in range(9)])
    assert [each.result(10) for each in waiting] == [[f"{i} 4"] for i in range(9)]
    assert [len(call) for call in echo.calls] == [1, 9]


def test_batch_respects_max_size_without_splitting_calls(echo: Echo, batches: MicroBatches) -> None:
    waiting = echo.answer(batches, *[tuple("abcdef")] * 4)
    assert all(each.result(10) == [f"{text} 4" for text in "abcdef"] for each in waiting)
    assert [len(call) for call in echo.calls] == [1, 12, 12]


def test_calls_with_different_sampling_are_not_batched_together(echo: Echo, batches: MicroBatches) -> None:
    waiting = echo.answer(batches, *[("x",)] * 4, limits=[4, 9, 4, 9])
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
def test_failing_call_does_not_affect_others_in_its_batch(
    echo: Echo, batches: MicroBatches, bad: str, kind: type[Exception], message: str
) -> None:
    good, fails, other = echo.answer(batches, ("a",), (bad,), ("b",))
    assert (good.result(10), other.result(10)) == (["a 4"], ["b 4"])
    with pytest.raises(kind, match=message):
        fails.result(10)
    assert ask(batches, "after") == ["after 4"]


def test_close_finishes_the_call_in_flight_and_rejects_the_rest(echo: Echo, batches: MicroBatches) -> None:
    first, waiting = echo.hold(batches, ("waiting",))
    closing = echo.pool.submit(batches.close)
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


def test_close_aborts_the_batch_in_flight_without_retries(echo: Echo) -> None:
    echo.can_end = True
    batches = MicroBatches(echo, window_s=0.5, max_size=2)
    calls = [echo.pool.submit(ask, batches, text) for text in "ab"]
    assert echo.entered.wait(10)
    echo.pool.submit(batches.close).result(5)
    for call in calls:
        with pytest.raises(ModelError, match="the engine failed: ModelError"):
            call.result(5)
    assert [len(call) for call in echo.calls] == [2]

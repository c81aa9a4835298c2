"""An engine that all requests share."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

from think_as_locals.engines.engine import Engine, Messages, Sampled, Sampling, sample_all
from think_as_locals.types import Rollout


@dataclass(frozen=True, slots=True)
class _Call:
    conversations: Sequence[Messages]
    sampling: Sampling
    rollouts: Future[list[Rollout]] = field(default_factory=Future)


class Batches:
    """An engine for any number of threads: the calls that come while it is busy are its next batch.

    If a batch fails, each of its calls is tried alone, so that a prompt that is too long fails only its own call.
    """

    def __init__(self, engine: Engine) -> None:
        self.special_tokens = engine.special_tokens
        self.check_texts = engine.check_texts
        self.sort_key = engine.sort_key
        self.close = engine.close
        self._engine = engine
        self._waiting: list[_Call] = []
        self._list_lock, self._engine_lock = Lock(), Lock()

    def sample(self, conversations: Sequence[Messages], sampling: Sampling) -> Sampled:
        """Sample as `Engine.sample` does, and yield all rollouts together."""
        call = _Call(conversations, sampling)
        with self._list_lock:
            self._waiting.append(call)
        with self._engine_lock:
            if not call.rollouts.done():  # otherwise it was in the batch of another thread
                with self._list_lock:
                    batch = [each for each in self._waiting if each.sampling == sampling]
                    self._waiting = [each for each in self._waiting if each.sampling != sampling]
                self._answer(batch)
        yield from enumerate(call.rollouts.result())

    def _answer(self, batch: Sequence[_Call]) -> None:
        conversations = [messages for call in batch for messages in call.conversations]
        try:
            rollouts = iter(sample_all(self._engine, conversations, batch[0].sampling))
        except Exception as error:  # any exception: its own thread raises it
            if len(batch) == 1:
                batch[0].rollouts.set_exception(error)
                return
            for call in batch:
                self._answer([call])
        else:
            for call in batch:
                call.rollouts.set_result([next(rollouts) for _ in call.conversations])

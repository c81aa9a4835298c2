"""Micro-batches: calls of several threads at about the same time become one call of an engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from think_as_locals.engines.engine import Deliver, Engine, Messages, Sampling, sample_all
from think_as_locals.types import DataError, ModelError, Rollout

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Job:
    conversations: Sequence[Messages]
    sampling: Sampling
    rollouts: Future[list[Rollout]] = field(default_factory=Future)


class MicroBatches:
    """An engine that any number of threads may call: a single worker thread passes their calls on in batches.

    Calls within `window_s` of one another, or while the engine is busy, are one batch, of up to `max_size`
    conversations and ten windows. If a batch fails, each of its calls is tried alone, so that one prompt that is too
    long fails only its own call.
    """

    def __init__(self, engine: Engine, window_s: float, max_size: int) -> None:
        self.special_tokens = engine.special_tokens
        self.check_texts = engine.check_texts
        self._engine = engine
        self._window_s = window_s
        self._max_size = max_size
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._closed = False
        self._worker = Thread(target=self._work, name="engine", daemon=True)
        self._worker.start()

    def sample(self, conversations: Sequence[Messages], sampling: Sampling, deliver: Deliver) -> None:
        """Sample as `Engine.sample` does, and deliver all rollouts together; a ModelError if it fails or is closed."""
        job = _Job(conversations, sampling)
        with self._lock:
            if self._closed:
                raise ModelError("the engine is closed: the server is stopping")
            self._jobs.put(job)
        for index, rollout in enumerate(job.rollouts.result()):
            deliver(index, rollout)

    def close(self) -> None:
        """Close the engine and end the worker thread; waiting calls get an error."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        self._engine.close()
        self._worker.join()

    def _work(self) -> None:
        while jobs := self._next():
            for sampling in dict.fromkeys(job.sampling for job in jobs):
                self._answer([job for job in jobs if job.sampling == sampling], sampling)

    def _next(self) -> list[_Job]:
        """Return the calls of the next batch; none once the engine is closed."""
        job, jobs = self._jobs.get(), []
        ends = time.monotonic() + 10 * self._window_s
        while job is not None and not self._closed:
            jobs.append(job)
            if sum(len(each.conversations) for each in jobs) >= self._max_size:
                return jobs
            try:
                job = self._jobs.get(timeout=max(0.0, min(self._window_s, ends - time.monotonic())))
            except Empty:
                return jobs
        while job is not None:
            jobs.append(job)
            job = self._jobs.get()
        for waiting in jobs:
            waiting.rollouts.set_exception(ModelError("the engine was closed before its turn: the server is stopping"))
        return []

    def _answer(self, jobs: Sequence[_Job], sampling: Sampling) -> None:
        conversations = [messages for job in jobs for messages in job.conversations]
        try:
            rollouts = iter(sample_all(self._engine, conversations, sampling))
        except Exception as error:
            # It concerns the callers of this batch alone: the thread goes on for all others.
            _logger.exception("%d conversations of %d calls failed", len(conversations), len(jobs))
            if len(jobs) > 1 and not self._closed:
                for job in jobs:
                    self._answer([job], sampling)
                return
            failed: Exception = ModelError(f"the engine failed: {type(error).__name__}")
            failed.__cause__ = error
            if len(jobs) == 1 and isinstance(error, DataError):  # the caller's fault
                failed = error
            for job in jobs:
                job.rollouts.set_exception(failed)
        else:
            for job in jobs:
                job.rollouts.set_result([next(rollouts) for _ in job.conversations])

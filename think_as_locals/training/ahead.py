"""Sampling ahead: a vLLM server samples the next generation batches while the policy trains on this one.

With `rollout.ahead=N`, at the start of generation batch k:

    1. its completions come from the server, which began them while the policy trained on an earlier batch;
    2. if nothing else is in flight, the policy's weights are sent and checked, and batches k+1 .. k+N are started;
    3. rewards and the update follow while the server samples.

So weights change only between requests, and a batch is sampled with weights from at most N batches before it. TRL's
importance weights, pi(token) / pi_server(token), correct for that. Prompts come in the order of the data loader, whose
sampler is replayed here, and a batch is used only if its prompts are those that the data loader then gives.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Any

from accelerate.utils import broadcast_object_list
from trl import GRPOTrainer

from think_as_locals.engines.vllm_server import SampledTokens
from think_as_locals.training.served_engine import Sampled, ServedGeneration
from think_as_locals.types import TrainingError

_logger = logging.getLogger(__name__)

_STOPPING_S = 300.0  # for a checkpoint after a signal: Slurm ends a job ten minutes later, as launch/slurm.sh asks

Prompts = list[list[int]]
"""Of all ranks, as token ids."""


@dataclass
class _Batch:
    number: int  # of the generation batch, counted over the run
    weights: int  # the generation batch at whose start the weights were sent that sample it
    prompts: str  # their digest
    sampled: Future[Sampled | None] = field(default_factory=Future)  # the main process alone gets a result


class SampledAhead:
    """The generation batches that are being sampled or are still to be used; every rank has one such object."""

    def __init__(self, trainer: GRPOTrainer, ahead: int) -> None:
        """Sample for a `JudgeTrainer` with a server, which sends its weights and says the order of its rows."""
        self._trainer = trainer
        self._engine: ServedGeneration = trainer.vllm_generation
        self._ahead = ahead
        self._batches: deque[_Batch] = deque()
        self._rows: Iterator[list[int]] | None = None  # of the generation batches after those
        if not trainer.vllm_importance_sampling_correction and trainer.accelerator.is_main_process:
            _logger.warning(
                "rollout.ahead=%d: nothing corrects for batches of older weights, which can spoil what is learned; set "
                "grpo.vllm_importance_sampling_correction=true",
                ahead,
            )

    def take(self, prompts: Prompts) -> tuple[list[list[int]], list[list[float | None]]]:
        """Return token ids and log-probabilities for this rank's prompts of the generation batch that begins.

        Raises TrainingError on all ranks if the server fails; if it was restarted, the batch is sampled now.
        """
        number = self._trainer._step // self._window
        found, staleness = None, 0
        if self._batches:
            batch = self._batches.popleft()
            all_prompts, own = self._engine.gathered(prompts)
            if _prompts_digest(all_prompts) != batch.prompts:
                raise TrainingError(
                    f"generation batch {batch.number} was sampled for other prompts than those that the data loader "
                    "gives: something changes their order; set rollout.ahead=0"
                )
            found = self._engine.collect(batch.sampled, own)
            staleness = number - batch.weights
        if found is None:  # the first batch of a process, or the server was restarted: it has no weights for the rest
            self._batches.clear()
            self._rows = None
            self._trainer.sync_weights()
            _, ids, log_probs, _ = self._engine.generate(prompts, None, self._trainer.num_generations)
            found = [SampledTokens(i, [p[0] for p in row], []) for i, row in zip(ids, log_probs, strict=True)]
            staleness = 0
            self._start(number)
        elif not self._batches:
            self._trainer.sync_weights()
            self._start(number)
        self._trainer.log_rollouts("rollout/staleness", staleness)
        return [one.token_ids for one in found], [one.log_probs for one in found]

    def state(self) -> list[dict[str, Any]]:
        """Wait until nothing is in flight; return, on the main process, the batches that have not been used yet."""
        batches: list[dict[str, Any]] = []
        if not self._trainer.accelerator.is_main_process:
            return batches
        stops = self._trainer.control.should_training_stop
        until = time.monotonic() + min(self._engine.limit_s, _STOPPING_S if stops else math.inf)  # for all of them
        for batch in self._batches:
            try:
                sampled = batch.sampled.result(until - time.monotonic())
            except Exception as error:  # any exception: training itself ends with it, at the next batch
                found = f"{type(error).__name__}: {error}"
                _logger.warning("a checkpoint without what the server was sampling (%s): it is sampled again", found)
                break
            if sampled is None:  # the server was restarted, and was reported
                break
            numbers = {"number": batch.number, "weights": batch.weights, "prompts": batch.prompts}
            completions = [[each.token_ids, each.log_probs] for each in sampled.completions]
            batches.append({**numbers, "completions": completions, "prefix_cache": sampled.prefix_cache})
        return batches

    def load_state(self, batches: Sequence[dict[str, Any]]) -> None:
        """Restore the state that each rank has saved; all ranks call this."""
        results = [(batch.pop("completions"), batch.pop("prefix_cache")) for batch in batches]  # on the main process
        self._batches.extend(_Batch(**values) for values in broadcast_object_list([list(batches)])[0])
        for batch, (completions, prefix_cache) in zip(self._batches, results, strict=False):
            found = [SampledTokens(ids, log_probs, []) for ids, log_probs in completions]
            batch.sampled.set_result(Sampled(found, tuple(prefix_cache)))

    def _start(self, number: int) -> None:
        """Start the next N generation batches after this one, or as many as there are."""
        if self._rows is None:
            self._rows = islice(self._generation_batches(), number + 1, self._count_batches())
        rows = list(islice(self._rows, self._ahead))
        prompts = self._engine.on_main(lambda: [self._tokenized(each) for each in rows])
        futures = self._engine.sample_ahead(prompts)
        self._batches.extend(
            _Batch(number + 1 + offset, number, _prompts_digest(each), future)
            for offset, (each, future) in enumerate(zip(prompts, futures, strict=True))
        )

    def _tokenized(self, rows: list[int]) -> Prompts:
        """Return the prompts of rows, which repeat, as token ids."""
        distinct = list(dict.fromkeys(rows))
        conversations = self._trainer.train_dataset[distinct]["prompt"]
        ids = dict(zip(distinct, self._trainer._tokenize_prompts(conversations)[0], strict=True))
        return [ids[row] for row in rows]

    @property
    def _window(self) -> int:
        """The number of micro-steps that use one generation batch."""
        return int(self._trainer.args.steps_per_generation * self._trainer.num_iterations)

    def _generation_batches(self) -> Iterator[list[int]]:
        """Yield the rows of each generation batch, epoch after epoch."""
        order, size = self._trainer.make_order(), self._trainer.args.generation_batch_size
        order.repeat_count = 1
        while True:
            rows = iter(order)
            while batch := list(islice(rows, size)):
                yield batch

    def _count_batches(self) -> int:
        """Return how many generation batches there are until the last optimizer step."""
        args = self._trainer.args
        epoch = len(self._trainer.make_order()) // args.generation_batch_size  # micro-steps
        epochs, steps = divmod(self._trainer.state.max_steps, ceil(epoch / args.gradient_accumulation_steps))
        micro_steps: int = epochs * epoch + min(epoch, steps * args.gradient_accumulation_steps)
        return ceil(micro_steps / self._window)


def _prompts_digest(prompts: Prompts) -> str:
    return hashlib.sha256(repr(prompts).encode()).hexdigest()

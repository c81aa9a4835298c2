"""What a trainer samples from with vLLM, in its own processes or on a server: a stand-in for TRL's VLLMGeneration.

TRL calls `sync_weights` where the policy has changed and `generate` for the rollouts of a step. Here a sync ends with
the engine's log-probabilities compared with the policy's, of an adapter its own tensors alone are sent where the engine
can apply them, and prompts go to it in the order of their prefixes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from trl.generation.vllm_generation import VLLMGeneration

from think_as_locals.generation.server_engine import Completion
from think_as_locals.training.adapters import adapter_tensors, merged_parameters, why_not_alone
from think_as_locals.training.probe import Probe

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What TRL does not pass on.

    Args:
        dtype: Type of the engine's weights.
        revision: That of the model on the Hub.
        eos_token_ids: Every id that ends a completion.
        probe: What compares engine and policy, given the trainer's accelerator.
        log: Takes a metric of this step.
        url: Where the server listens.
        timeout_s: Seconds in which it must have sampled for a step, or taken new weights.
        weights: Folder of this run alone, through which weights reach it.
    """

    dtype: str
    revision: str | None
    eos_token_ids: frozenset[int]
    probe: Callable[[Any], Probe]
    log: Callable[[str, float], None]
    url: str
    timeout_s: float
    weights: Path


class CheckedEngine(VLLMGeneration, ABC):
    """What the engines share: every sync is checked, prompts are sorted."""

    def __init__(self, *, settings: EngineSettings, **trl: Any) -> None:
        self._settings = settings
        self._probe = settings.probe(trl["accelerator"])
        self._warned = False
        super().__init__(**trl)

    def sync_weights(self) -> None:
        """Give the engine the policy's weights.

        Raises:
            TrainingError: on all ranks, where it does not then compute what the policy does.
        """
        self._sent = 0
        if is_peft_model(self.model) and self._goes_alone():
            tensors = adapter_tensors(self.model, self._dist.gather_params)
            self._sent = sum(tensor.nbytes for tensor in tensors.values())
            self._send_adapter(tensors)
        else:
            self._send_weights()
        self._settings.log("rollout/synced_megabytes", self._sent / 1e6)
        self._settings.log("rollout/probe_difference", self._probe.compare(self.model, self._probed()))

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Any:
        """As TRL's, with neighbouring prompts sharing what they can; logs how much that was."""
        order = sorted(range(len(prompts)), key=prompts.__getitem__)
        before = self._prefix_cache()
        found = self._sample([prompts[i] for i in order], num_generations, profiler)
        counts = zip(self._prefix_cache(), before, strict=True)
        hits, looked_for = (now - then if now >= then else now for now, then in counts)  # a new server counts from 0
        sums = self.accelerator.reduce(torch.tensor([hits, looked_for], device=self.accelerator.device))
        self._settings.log("rollout/prefix_cache_hit_rate", float(sums[0] / sums[1].clamp(min=1)))
        back = sorted(range(len(order)), key=order.__getitem__)
        return tuple([column[i] for i in back] if column is not None else None for column in found)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        if is_peft_model(self.model) and not self._dist.is_fsdp:
            yield from self._counted(merged_parameters(self.model, self._dist.gather_params))
        else:
            yield from self._counted(super()._iter_named_params())

    def _counted(self, parameters: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights in the engine's type, which may be half of what the policy learns in."""
        for name, parameter in parameters:
            sent = parameter.to(getattr(torch, self._settings.dtype))
            self._sent += sent.nbytes
            yield name, sent

    def _why_not_alone(self) -> str | None:
        """What of the policy, whichever engine it has, keeps its adapter from going alone."""
        return "FSDP shards it" if self._dist.is_fsdp else why_not_alone(self.model)

    def _goes_alone(self) -> bool:
        reason = self._why_not_alone() or self._refuses_adapter()
        if reason and not self._warned and self.accelerator.is_main_process:
            _logger.warning("every weight sync sends the whole model, with the adapter merged: %s", reason)
        self._warned = reason is not None
        return reason is None

    @abstractmethod
    def _refuses_adapter(self) -> str | None:
        """Why this engine cannot apply the policy's adapter itself, or `None`."""

    @abstractmethod
    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        """Have the engine apply the policy's adapter to the base weights; all ranks have its tensors."""

    @abstractmethod
    def _send_weights(self) -> None:
        """Load the policy's weights into the engine, those of an adapter merged."""

    @abstractmethod
    def _probed(self) -> list[Completion]:
        """The engine's own greedy completions of the probe's prompts, with the likeliest tokens at each place."""

    @abstractmethod
    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        """What TRL's `generate` returns."""

    @abstractmethod
    def _prefix_cache(self) -> tuple[float, float]:
        """Prompt tokens found in the prefix cache so far, and looked for."""

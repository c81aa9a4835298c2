"""vLLM in the trainer's own processes, and the checked weight syncs that it shares with a vLLM server.

TRL calls `sync_weights` when the policy has changed, and `generate` for the rollouts of a step. Our classes replace
TRL's VLLMGeneration: the one here and that of `served_engine.py`.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from socket import socket
from tempfile import TemporaryDirectory
from typing import Any, get_args
from unittest.mock import patch

import torch
from accelerate.utils import gather_object, is_peft_model
from torch.distributed.fsdp import FSDPModule
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from think_as_locals.config.run_schema import RunConfig
from think_as_locals.engines import Chat, Messages, vllm_engine
from think_as_locals.engines.transformers_engine import evaluating, padded
from think_as_locals.engines.vllm_engine import ChecksumRequest, SentTensors, check_sync, read_checksum
from think_as_locals.engines.vllm_server import SampledTokens
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.adapters import (
    adapter_tensors,
    applied_tensors,
    base_parameters,
    lora_unsupported_reason,
    save_adapter,
)
from think_as_locals.types import TrainingError

_logger = logging.getLogger(__name__)

CHECK_PROMPTS, _TOKENS = 4, 8  # of the check after a sync: how many prompts, and tokens of each completion
_LIKELIEST = 20  # token ids per position; vLLM returns at most 20 unless configured
_NEGLIGIBLE = 0.1  # share of a tolerance that log-probabilities may always differ by
CHECK_SAMPLING = {"temperature": 0.0, "max_tokens": _TOKENS, "logprobs": _LIKELIEST, "ignore_eos": True}

Parameters = Iterator[tuple[str, torch.Tensor]]
Lookups = tuple[float, float]
"""Hits and queries of a prefix cache, in tokens."""


def rollout_arguments(config: RunConfig) -> dict[str, Any]:
    """Return GRPOConfig's arguments for the rollout section."""
    rollout, chat = config.rollout, {"chat_template_kwargs": dict(config.model.chat_template_kwargs)}
    if rollout.backend == "transformers":
        return {**chat, "use_vllm": False}
    share = rollout.gpu_memory_utilization  # without a GPU there is none to share
    return {
        **chat,
        **({"vllm_gpu_memory_utilization": share} if share else {}),
        "use_vllm": True,
        "vllm_mode": "colocate",  # with `server` TRL would look for a client of its own kind
        "vllm_max_model_length": rollout.max_model_length,
    }


class CheckedGeneration(VLLMGeneration, ABC):
    """What both kinds share: prompts are sorted by prefix, and an adapter is sent alone if the engine can apply it.

    After every sync a tensor that training has changed must equal the policy's bit for bit (`SentTensors`). Then the
    engine completes the first prompts of the data set greedily, and the log-probabilities of the likeliest tokens must
    be the policy's: this finds what one tensor does not show, such as an adapter that is not applied.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        chat: Chat,
        conversations: Sequence[Messages],
        run: RunFolder,
        log: Callable[[str, float], None],
        **trl: Any,
    ) -> None:
        self._config = config
        self._dtype = config.rollout.dtype or config.model.dtype  # of the engine's weights
        self._eos_token_ids = chat.eos_token_ids
        self._check_prompts = chat.encode(conversations)
        self._log = log
        shared = config.rollout.weights_dir
        # A folder of this run alone: files in it are from a process of this run that was killed.
        self._weights = (Path(shared).expanduser() / run.read_id() if shared else run.weights).absolute()
        self._warned: set[str] = set()
        self._tensors, self._adapter = SentTensors(self._dtype), SentTensors(self._dtype)
        self._noise: float | None = None  # the difference of log-probabilities after the first sync
        super().__init__(**trl)

    def sync_weights(self) -> None:
        """Send the policy's weights to the engine; TrainingError on all ranks if its results then differ."""
        self._tensors.begin()
        if reason := self._merge_reason() if is_peft_model(self.model) else None:
            self._warn_once(f"every weight sync sends the whole model, with the adapter merged: {reason}")
        if is_peft_model(self.model) and reason is None:
            tensors = adapter_tensors(self.model, self._dist.gather_params)
            self._sent = sum(tensor.nbytes for tensor in tensors.values())
            self._adapter.begin()
            for name, tensor in applied_tensors(self.model, tensors, getattr(torch, self._dtype)).items():
                self._adapter.add(name, tensor)
            self._send_adapter(tensors)
        else:
            self._send_weights()
        self._log("rollout/synced_megabytes", self._sent / 1e6)
        self._log("rollout/sync_check_difference", self._compare(self._check_completions()))

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Any:
        """Sample as TRL does; log the hit rate of the prefix cache."""
        before = self._prefix_cache()
        found = self._sample(prompts, num_generations, profiler)
        self._log_hit_rate(since(before, self._prefix_cache()))
        return found

    def _log_hit_rate(self, counts: Lookups) -> None:
        """Log the share of tokens found in the prefix cache, over the counts of all ranks, if there are any."""
        sums = self.accelerator.reduce(torch.tensor(counts, device=self.accelerator.device))
        if sums[1]:
            self._log("rollout/prefix_cache_hit_rate", float(sums[0] / sums[1]))

    def _compare(self, completions: Sequence[SampledTokens]) -> float:
        """Return the difference of the worst rank in nats: the maximum in full precision, the mean in half."""
        tolerance = self._config.rollout.tolerance
        precision = "full" if self._dtype == self._config.model.dtype == "float32" else "half"
        limit, named = getattr(tolerance, precision), f"rollout.tolerance.{precision}"
        if self._noise is not None and (usual := max(tolerance.growth * self._noise, _NEGLIGIBLE * limit)) < limit:
            limit, named = usual, f"rollout.tolerance.growth times {self._noise:.2g}, the difference of the first sync"
        likeliest = [
            [sorted(p.items(), key=lambda one: one[1])[-_LIKELIEST:] for p in c.likeliest] for c in completions
        ]
        ids, theirs = torch.tensor(likeliest, dtype=torch.float64).unbind(-1)
        ours = self._policy_log_probs([c.token_ids for c in completions]).gather(-1, ids.long())
        apart = (ours - theirs).abs().nan_to_num(nan=torch.inf)
        size, worst = apart.max() if precision == "full" else apart.mean(), int(apart.argmax())
        here = (float(size), float(ours.flatten()[worst]), float(theirs.flatten()[worst]))
        ranks: list[tuple[float, float, float]] = gather_object([here])
        rank, (difference, policys, engines) = max(enumerate(ranks), key=lambda found: found[1][0])
        if difference > limit:
            raise TrainingError(
                f"after a weight sync vLLM's log-probabilities differ from the policy's by {difference:.2g} on rank "
                f"{rank}, expected at most {limit:.2g} ({named}); worst token: {policys:.4f} by "
                f"the policy, {engines:.4f} by vLLM. Its weights are stale, of another model or of another type "
                "(rollout.dtype): nothing was sampled with them. Only where none of that holds, raise the tolerance"
            )
        self._noise = difference if self._noise is None else self._noise
        return difference

    @torch.no_grad()
    def _policy_log_probs(self, completions: list[list[int]]) -> torch.Tensor:
        """Return the policy's log-probabilities of all tokens at every position (prompts, _TOKENS, vocabulary)."""
        rows = [p + c[:-1] for p, c in zip(cycle(self._check_prompts), completions, strict=False)]
        ids, mask = (tensor.to(self.accelerator.device) for tensor in padded(rows, "left"))
        with evaluating(self.model), self.accelerator.autocast():
            wanted = {"logits_to_keep": _TOKENS, "use_cache": False}
            logits = self.model(input_ids=ids, attention_mask=mask, **wanted).logits
        self._reshard()
        log_probs: torch.Tensor = logits.float().log_softmax(-1).cpu()
        return log_probs

    def _reshard(self) -> None:
        """Shard what FSDP2 leaves whole after a forward without gradients: the last norm, the head, the root."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _iter_named_params(self) -> Parameters:
        self._sent = 0  # NCCL asks for names and shapes first
        self._reshard()  # after other passes without gradients, for old log-probabilities and rewards
        if is_peft_model(self.model):
            yield from self._counted(base_parameters(self.model, self._dist.gather_params, merged=True))
        else:
            yield from self._counted(super()._iter_named_params())

    def _counted(self, parameters: Parameters) -> Parameters:
        """Yield weights in the engine's type, which may be smaller than the policy's, and note them as sent."""
        for name, parameter in parameters:
            sent = parameter.to(getattr(torch, self._dtype))
            self._sent += sent.nbytes
            self._tensors.add(name, sent)
            yield name, sent

    def _merge_reason(self) -> str | None:
        """Return why the engine cannot apply the policy's adapter, or `None`; here: why no engine can."""
        return "FSDP shards it" if self._dist.is_fsdp else lora_unsupported_reason(self.model)

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned and self.accelerator.is_main_process:
            _logger.warning(warning)
        self._warned.add(warning)

    def _check_tensor(self, sent: SentTensors, expected: int, workers: Sequence[int | None], where: str) -> None:
        """Check the tensor that was read back; a warning if there is none."""
        name = sent.request["name"] if sent.request else ""
        if not check_sync(name, expected, workers, where):
            self._warn_once(f"no tensor {name} can be read back from vLLM: log-probabilities alone check weight syncs")

    @abstractmethod
    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        """Have the engine apply the policy's adapter to the base weights; all ranks have its tensors."""

    @abstractmethod
    def _send_weights(self) -> None:
        """Load the policy's weights into the engine, with an adapter merged."""

    @abstractmethod
    def _check_completions(self) -> list[SampledTokens]:
        """Return greedy completions of the check's prompts with the likeliest tokens, engine after engine."""

    @abstractmethod
    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        """Return what TRL's `generate` returns, for prompts sorted by prefix."""

    @abstractmethod
    def _prefix_cache(self) -> Lookups:
        """Return how many prompt tokens the prefix cache has found so far, and how many were looked up."""


class ColocatedGeneration(CheckedGeneration):
    """TRL's colocated vLLM, in the trainer's processes and on its GPUs, with the run's type and revision."""

    def _init_vllm(self) -> None:
        vllm_engine.prepare()
        if self.accelerator.num_processes == 1:  # TRL's choice may be another run's until vLLM listens, seconds later
            with socket() as free:
                free.bind(("localhost", 0))
                os.environ.setdefault("MASTER_PORT", str(free.getsockname()[1]))
        self._num_adapters = 0  # sent so far
        self._made_without: str | None = None  # why the engine was made without adapters
        with patch.object(vllm_generation, "LLM", partial(self._make, vllm_generation.LLM)):
            super()._init_vllm()

    def _make(self, llm: Any, **trl: Any) -> Any:
        settings = {
            **trl,
            "dtype": self._dtype,
            "revision": self._config.model.revision,
            "enforce_eager": not torch.cuda.is_available(),
            "max_num_seqs": max(trl["max_num_seqs"], vllm_engine.AT_ONCE),  # TRL's is the completions of a step
            "disable_log_stats": False,  # the hits of the prefix cache are among them
            "hf_overrides": {"head_dtype": "float32" if self._config.grpo.cast_lm_head_to_fp32 else "model"},
        }
        if is_peft_model(self.model):
            rank = self.model.active_peft_config.r
            self._made_without = super()._merge_reason() or vllm_merge_reason(settings, rank)
            if self._made_without is None:
                settings |= {"enable_lora": True, "max_lora_rank": min(size for size in _ranks() if size >= rank)}
        return llm(**settings)

    def _merge_reason(self) -> str | None:
        if reason := super()._merge_reason() or self._made_without:
            return reason
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        return lora_unsupported_reason(self.model, vllm_engine.adapter_limits(runner))

    def _read_back(self, sent: SentTensors) -> None:
        """Compare a tensor of the workers with the one sent; ranks that share an engine have a worker each."""
        here = sent.expected, self._read(sent.request) if sent.request else None
        ranks: list[tuple[int, int | None]] = gather_object([here])
        for first in range(0, len(ranks), size := self.tensor_parallel_size):
            workers = [found for _, found in ranks[first : first + size]]
            self._check_tensor(sent, ranks[first][0], workers, f"vLLM on rank {first}")

    def _read(self, request: ChecksumRequest) -> int | None:
        return read_checksum(self.llm.llm_engine.model_executor.driver_worker.model_runner, request)

    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        from vllm.lora.request import LoRARequest

        self._num_adapters += 1
        with TemporaryDirectory(prefix="adapter-") as folder:
            save_adapter(self.model, tensors, folder)
            # The new number makes vLLM load it, the new name empties its prefix cache.
            request = LoRARequest(f"policy-{self._num_adapters}", self._num_adapters, folder)
            self.llm.llm_engine.add_lora(request)
        # TRL and evaluations sample by this method too, without adapters.
        self.llm.generate = partial(type(self.llm).generate, self.llm, lora_request=request)
        self._read_back(self._adapter)

    def _send_weights(self) -> None:
        VLLMGeneration.sync_weights(self)
        self._read_back(self._tensors)

    def sleep(self) -> None:
        """Free the engine's memory, if it sleeps between rollouts: the next ones send it the weights again."""
        if self.enable_sleep_mode:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True

    def _check_completions(self) -> list[SampledTokens]:
        from vllm import SamplingParams

        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["kv_cache"])
        prompts = [{"prompt_token_ids": ids} for ids in self._check_prompts]
        params = SamplingParams(**CHECK_SAMPLING, detokenize=False)
        outputs = [output.outputs[0] for output in self.llm.generate(prompts, params, use_tqdm=False)]
        return [
            SampledTokens(list(o.token_ids), [], [{t: one.logprob for t, one in top.items()} for top in o.logprobs])
            for o in outputs
        ]

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        return in_prefix_order(
            prompts, lambda ordered: VLLMGeneration.generate(self, ordered, None, num_generations, profiler)
        )

    def _prefix_cache(self) -> Lookups:
        counts = {metric.name: metric.value for metric in self.llm.get_metrics() if "prefix_cache" in metric.name}
        return counts["vllm:prefix_cache_hits"], counts["vllm:prefix_cache_queries"]


def vllm_merge_reason(settings: dict[str, Any], rank: int) -> str | None:
    """Return why vLLM with these settings could not apply an adapter of this rank, or `None`."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_cls
    from vllm.model_executor.models import supports_lora

    if settings["enable_sleep_mode"]:
        return "grpo.vllm_enable_sleep_mode has the engine forget its base weights"
    if settings["dtype"] == "float32" and torch.cuda.is_available():
        return "vLLM's kernels for it take half precision on a GPU (rollout.dtype)"
    if rank > max(_ranks()):
        return f"its rank is {rank}, vLLM takes up to {max(_ranks())}"
    architecture = get_model_cls(EngineArgs(**settings).create_model_config())
    return None if supports_lora(architecture) else f"vLLM has no adapters for {architecture.__name__}"


def _ranks() -> tuple[int, ...]:
    from vllm.config.lora import MaxLoRARanks

    return get_args(MaxLoRARanks)


def since(before: Lookups, now: Lookups) -> Lookups:
    """Return how much counts have grown, which start from 0 in a restarted server."""
    hits, queries = (new - old if new >= old else new for old, new in zip(before, now, strict=True))
    return hits, queries


def in_prefix_order(prompts: Sequence[list[int]], sample: Callable[[list[list[int]]], Any]) -> tuple[Any, ...]:
    """Call `sample` with sorted prompts; return its columns (a value per prompt, or `None`) in the original order."""
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    columns = sample([prompts[i] for i in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    return tuple([column[i] for i in back] if column is not None else None for column in columns)

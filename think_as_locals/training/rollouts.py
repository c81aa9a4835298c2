"""What a trainer samples from: the engine for `rollout=...`, given the policy's weights and checked after every sync.

TRL calls `sync_weights` where the policy has changed and `generate` for the rollouts of a step. With vLLM, in the
trainer's own processes or on a server, our engines stand in for TRL's VLLMGeneration: a sync ends with a comparison of
the engine's log-probabilities with the policy's, an adapter is sent alone where the engine can apply it, and prompts
are sent in the order of their prefixes.
"""

from __future__ import annotations

import importlib
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, get_args

import safetensors.torch
import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from trl import GRPOTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.models import unwrap_model_for_generation
from trl.trainer import grpo_trainer

from think_as_locals.config.schema import RunConfig
from think_as_locals.engines import Chat, Engine, Messages, vllm_engine
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.engines.vllm_engine import VLLMEngine
from think_as_locals.engines.vllm_server import START, OtherWeightsError, SampledTokens, ServerEngine, VLLMServer
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.training.adapters import (
    adapter_tensors,
    base_parameters,
    lora_unsupported_reason,
    merged_parameters,
    save_adapter,
)
from think_as_locals.training.faults import run_with_timeout
from think_as_locals.training.sync_check import LIKELIEST, TOKENS, SyncCheck
from think_as_locals.types import ServerError, TrainingError

_logger = logging.getLogger(__name__)

T = TypeVar("T")
Parameters = Iterator[tuple[str, torch.Tensor]]


def rollout_arguments(config: RunConfig) -> dict[str, Any]:
    """Return GRPOConfig's arguments for the rollout section."""
    rollout = config.rollout
    arguments: dict[str, Any] = {
        "chat_template_kwargs": dict(config.model.chat_template_kwargs),
        "use_vllm": rollout.backend != "transformers",
    }
    if rollout.backend != "transformers":
        arguments |= {
            "vllm_mode": "colocate",  # with `server` TRL would look for a client of its own kind
            "vllm_gpu_memory_utilization": rollout.gpu_memory_utilization,
            "vllm_max_model_length": rollout.max_model_length,
        }
    return arguments


@contextmanager
def rollout_engine(
    config: RunConfig, chat: Chat, conversations: Sequence[Messages], run: RunFolder, log: Callable[[str, float], None]
) -> Iterator[None]:
    """Have a GRPOTrainer that is made within this context sample with our engine instead of TRL's.

    Engine and policy are compared on `conversations` after every weight sync.
    """
    rollout, dtype = config.rollout, config.rollout.dtype or config.model.dtype
    full_precision = dtype == config.model.dtype == "float32"
    settings = EngineSettings(
        dtype=dtype,
        revision=config.model.revision,
        eos_token_ids=chat.eos_token_ids,
        sync_check=partial(SyncCheck, chat.encode(conversations), rollout.tolerance, full_precision),
        log=log,
        url=rollout.url,
        timeout_s=rollout.timeout_s,
        weights=_weights_folder(rollout.weights_dir, run),
    )
    engine = {"vllm_colocate": ColocatedEngine, "vllm_server": ServedEngine}.get(rollout.backend)
    original = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = partial(engine, settings=settings) if engine else original
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = original


def _weights_folder(shared: str | None, run: RunFolder) -> Path:
    """Return a folder that no other run puts weights into: files found there are this run's, from before a kill."""
    if shared is None:
        return run.weights.absolute()
    return Path(shared).expanduser().absolute() / run.read_id()


@contextmanager
def policy_engine(trainer: GRPOTrainer, chat: Chat, batch_size: int) -> Iterator[Engine]:
    """Return the trainer's own engine with the policy's current weights: an evaluation loads nothing a second time."""
    if not trainer.use_vllm:
        kwargs = {"gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs}
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **kwargs) as model:
            yield TransformersEngine(model, chat, batch_size)
        return
    engine = trainer.vllm_generation
    engine.sync_weights()
    yield ServerEngine(engine.complete, chat) if isinstance(engine, ServedEngine) else VLLMEngine(engine.llm, chat)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings that TRL does not pass on."""

    dtype: str  # of the engine's weights
    revision: str | None
    eos_token_ids: frozenset[int]
    sync_check: Callable[[Any], SyncCheck]  # given the trainer's accelerator
    log: Callable[[str, float], None]  # takes a metric of this step
    url: str
    timeout_s: float
    weights: Path  # folder of this run alone, through which weights reach a server


class CheckedEngine(VLLMGeneration, ABC):
    """What both engines share: every sync is checked, prompts are sorted."""

    def __init__(self, *, settings: EngineSettings, **trl: Any) -> None:
        self._settings = settings
        self._sync_check = settings.sync_check(trl["accelerator"])
        self._warned = False
        super().__init__(**trl)

    def sync_weights(self) -> None:
        """Send the policy's weights to the engine; TrainingError on all ranks where it then computes something else."""
        self._sent = 0
        if is_peft_model(self.model) and self._sends_adapter():
            tensors = adapter_tensors(self.model, self._dist.gather_params)
            self._sent = sum(tensor.nbytes for tensor in tensors.values())
            self._send_adapter(tensors)
        else:
            self._send_weights()
        self._settings.log("rollout/synced_megabytes", self._sent / 1e6)
        difference = self._sync_check.compare(self.model, self._check_completions())
        self._settings.log("rollout/probe_difference", difference)

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Any:
        """Sample as TRL does; log how much of the prompts the prefix cache had."""
        before = self._prefix_cache()
        found = self._sample(prompts, num_generations, profiler)
        counts = zip(self._prefix_cache(), before, strict=True)
        hits, queries = (now - then if now >= then else now for now, then in counts)  # a new server counts from 0
        sums = self.accelerator.reduce(torch.tensor([hits, queries], device=self.accelerator.device))
        self._settings.log("rollout/prefix_cache_hit_rate", float(sums[0] / sums[1].clamp(min=1)))
        return found

    def _iter_named_params(self) -> Parameters:
        if is_peft_model(self.model) and not self._dist.is_fsdp:
            yield from self._counted(merged_parameters(self.model, self._dist.gather_params))
        else:
            yield from self._counted(super()._iter_named_params())

    def _counted(self, parameters: Parameters) -> Parameters:
        """Return weights in the engine's type, which may be smaller than the policy's, and count their bytes."""
        for name, parameter in parameters:
            sent = parameter.to(getattr(torch, self._settings.dtype))
            self._sent += sent.nbytes
            yield name, sent

    def _merge_reason(self) -> str | None:
        """Return why no engine could apply the policy's adapter, or `None`."""
        return "FSDP shards it" if self._dist.is_fsdp else lora_unsupported_reason(self.model)

    def _sends_adapter(self) -> bool:
        reason = self._merge_reason() or self._engine_merge_reason()
        if reason and not self._warned and self.accelerator.is_main_process:
            _logger.warning("every weight sync sends the whole model, with the adapter merged: %s", reason)
        self._warned = reason is not None
        return reason is None

    @abstractmethod
    def _engine_merge_reason(self) -> str | None:
        """Return why this engine cannot apply the policy's adapter, or `None`."""

    @abstractmethod
    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        """Have the engine apply the policy's adapter to the base weights; all ranks have its tensors."""

    @abstractmethod
    def _send_weights(self) -> None:
        """Load the policy's weights into the engine, those of an adapter merged."""

    @abstractmethod
    def _check_completions(self) -> list[SampledTokens]:
        """Return the engine's greedy completions of the sync check's prompts, with the likeliest tokens."""

    @abstractmethod
    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        """Return what TRL's `generate` returns; prompts go to the engine in the order of their prefixes."""

    @abstractmethod
    def _prefix_cache(self) -> tuple[float, float]:
        """Return how many prompt tokens the prefix cache has had so far, and how many were looked up."""


class ColocatedEngine(CheckedEngine):
    """TRL's colocated vLLM, in the trainer's processes and on its GPUs, of the type and revision that the run says."""

    def _init_vllm(self) -> None:
        vllm_engine.prepare()
        if not hasattr(vllm_generation, "LLM"):  # see `training/__init__.py`
            importlib.reload(vllm_generation)
        self._num_adapters = 0  # sent so far
        self._made_without: str | None = None
        original = vllm_generation.LLM
        vllm_generation.LLM = partial(self._make, original)
        try:
            super()._init_vllm()
        finally:
            vllm_generation.LLM = original

    def _make(self, llm: Any, **trl: Any) -> Any:
        settings = {
            **trl,
            "dtype": self._settings.dtype,
            "revision": self._settings.revision,
            "enforce_eager": not torch.cuda.is_available(),
            "disable_log_stats": False,  # they count what the prefix cache found
        }
        if is_peft_model(self.model):
            rank = self.model.active_peft_config.r
            self._made_without = self._merge_reason() or vllm_merge_reason(settings, rank)
            if self._made_without is None:
                settings |= {"enable_lora": True, "max_lora_rank": min(size for size in _ranks() if size >= rank)}
        return llm(**settings)

    def _engine_merge_reason(self) -> str | None:
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        return self._made_without or lora_unsupported_reason(self.model, vllm_engine.adapter_limits(runner))

    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        from vllm.lora.request import LoRARequest

        self._num_adapters += 1
        with TemporaryDirectory(prefix="adapter-") as folder:
            save_adapter(self.model, tensors, folder)
            # The new number makes vLLM load it, the new name makes its prefix cache forget.
            request = LoRARequest(f"policy-{self._num_adapters}", self._num_adapters, folder)
            self.llm.llm_engine.add_lora(request)
        # TRL and an evaluation sample by this method as well, and know of no adapters.
        self.llm.generate = partial(type(self.llm).generate, self.llm, lora_request=request)

    def _send_weights(self) -> None:
        VLLMGeneration.sync_weights(self)

    def _check_completions(self) -> list[SampledTokens]:
        from vllm import SamplingParams

        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["kv_cache"])
        params = SamplingParams(
            temperature=0.0, max_tokens=TOKENS, logprobs=LIKELIEST, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": ids} for ids in self._sync_check.prompts]
        outputs = [output.outputs[0] for output in self.llm.generate(prompts, params, use_tqdm=False)]
        likeliest = [[{t: found.logprob for t, found in place.items()} for place in o.logprobs] for o in outputs]
        return [SampledTokens(list(o.token_ids), [], places) for o, places in zip(outputs, likeliest, strict=True)]

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        return _in_prefix_order(
            prompts, lambda ordered: VLLMGeneration.generate(self, ordered, None, num_generations, profiler)
        )

    def _prefix_cache(self) -> tuple[float, float]:
        counts = {metric.name: metric.value for metric in self.llm.get_metrics() if "prefix_cache" in metric.name}
        return counts["vllm:prefix_cache_hits"], counts["vllm:prefix_cache_queries"]


def vllm_merge_reason(settings: dict[str, Any], rank: int) -> str | None:
    """Return why a vLLM with these settings could not apply an adapter of this rank, or `None`."""
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


_SYNC = "sync-"
_CHECK_SAMPLING = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": LIKELIEST, "ignore_eos": True}
_RESTARTS = 3  # times that a server may come back with other weights in one sampling, or in one sync
_GRACE_S = 10.0  # beyond rollout.timeout_s, which ends requests, for what no request can bound: a disk, a name server


class ServedEngine(CheckedEngine):
    """A vLLM server on other GPUs or another node, which the main process asks for all ranks.

    Weights reach it as safetensors in a folder that both can read.
    """

    _server: VLLMServer  # the main process alone has it
    _answers: list[SampledTokens]  # to the sync check's prompts, after the last sync

    def _init_vllm(self) -> None:
        self._loaded = ""
        self._on_main(self._connect)

    def complete(self, prompts: Sequence[list[int]], **parameters: Any) -> list[SampledTokens]:
        """Return a completion for each prompt of this rank; all ranks call it and raise TrainingError together."""
        counts = gather_object([len(prompts)])
        everyones = gather_object(list(prompts))
        for _ in range(_RESTARTS):
            if (found := self._on_main(lambda: self._current(everyones, parameters))) is not None:
                first = sum(counts[: self.accelerator.process_index])
                return found[first : first + len(prompts)]
            self.sync_weights()  # it was restarted, and has the weights it was started with
        raise TrainingError(self._restarts("sampled"))

    def _current(self, prompts: list[list[int]], parameters: dict[str, Any]) -> list[SampledTokens] | None:
        """Return completions by the weights of the last sync, or `None` where the server has others now."""

        def complete(ordered: list[list[int]]) -> tuple[list[SampledTokens]]:
            return (self._server.complete(ordered, self._loaded, **parameters),)

        try:
            with self._server.one_limit():
                found: list[SampledTokens] = _in_prefix_order(prompts, complete)[0]
        except OtherWeightsError:
            return None
        return found

    def _connect(self) -> None:
        for left in self._settings.weights.glob(f"{_SYNC}*"):  # by a process of this run that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._server = VLLMServer(self._settings.url, self._settings.timeout_s)
        expected = {"dtype": self._settings.dtype, "logprobs_mode": "processed_logprobs"}
        state = self._server.state()
        if wrong := {name: state[name] for name, value in expected.items() if state[name] != value}:
            raise ServerError(f"the vLLM server at {self._settings.url} has {wrong}, expected {expected}: {START}")

    def _engine_merge_reason(self) -> str | None:
        return lora_unsupported_reason(self.model, self._on_main(lambda: self._server.state()["adapters"]))

    def _send_adapter(self, tensors: dict[str, torch.Tensor]) -> None:
        for _ in range(_RESTARTS):
            if self._on_main(lambda: self._server.state()["weights"] != self._loaded):
                # It was never given this run's base weights, or was restarted.
                self._send(self._counted(base_parameters(self.model, self._dist.gather_params)))
            if (answers := self._on_main(lambda: self._load_adapter(tensors))) is not None:
                self._answers = answers
                return
        raise TrainingError(self._restarts("took an adapter"))

    def _load_adapter(self, tensors: dict[str, torch.Tensor]) -> list[SampledTokens] | None:
        """Load the adapter; return the answers to the sync check, or `None` where the server was restarted since."""
        with self._server.one_limit(), TemporaryDirectory(dir=self._settings.weights, prefix=_SYNC) as folder:
            save_adapter(self.model, tensors, folder)
            try:
                self._server.load_adapter(folder)
                return self._server.complete(self._sync_check.prompts, self._loaded, **_CHECK_SAMPLING)
            except OtherWeightsError:
                return None

    def _send_weights(self) -> None:
        self._send(self._iter_named_params())

    def _send(self, parameters: Parameters) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in parameters:  # gathers what is sharded, so every rank goes through it
            if self.accelerator.is_main_process:
                tensors[name] = parameter.detach().to("cpu", copy=True).contiguous()
        self._answers = self._on_main(lambda: self._load(tensors))

    def _load(self, tensors: dict[str, torch.Tensor]) -> list[SampledTokens]:
        """Load weights into the server; return its answers to the sync check."""
        self._settings.weights.mkdir(parents=True, exist_ok=True)
        # The name is unique among syncs and runs: by it the server says what it holds.
        with self._server.one_limit(), TemporaryDirectory(dir=self._settings.weights, prefix=_SYNC) as folder:
            safetensors.torch.save_file(tensors, Path(folder, "model.safetensors"), metadata={"format": "pt"})
            for _ in range(_RESTARTS):
                self._server.load_weights(folder)
                with suppress(OtherWeightsError):  # it was restarted since
                    answers = self._server.complete(self._sync_check.prompts, folder, **_CHECK_SAMPLING)
                    self._loaded = folder
                    return answers
        raise ServerError(self._restarts("took new weights"))

    def _check_completions(self) -> list[SampledTokens]:
        return self._answers

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        found = self.complete(
            prompts,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty,
            max_tokens=self.max_completion_length,
            stop_token_ids=sorted(self._settings.eos_token_ids),
            **self.generation_kwargs,
        )
        return prompts, [c.token_ids for c in found], [[[value] for value in c.log_probs] for c in found], None

    def _prefix_cache(self) -> tuple[float, float]:
        counts = self._on_main(lambda: self._server.prefix_cache())
        return counts if self.accelerator.is_main_process else (0.0, 0.0)  # the ranks' are added up

    def _restarts(self, action: str) -> str:
        return (
            f"the vLLM server at {self._settings.url} came back with other weights {_RESTARTS} times while it {action}"
            ": its log says why it stops; see that no other run gives it weights"
        )

    def _on_main(self, work: Callable[[], T]) -> T:
        """Return on all ranks what the main process gets from the server; where that fails, all raise TrainingError."""
        result: list[Any] = [None, None]
        if self.accelerator.is_main_process:
            settings = self._settings
            try:
                result[0] = run_with_timeout(settings.timeout_s + _GRACE_S, work)
            except ServerError as error:
                result[1] = f"{error}"
            except Exception as error:  # of whatever kind: the other ranks wait
                result[1] = (
                    f"{type(error).__name__}: {error}: while the vLLM server at {settings.url} was asked to sample or "
                    f"to load weights from {settings.weights}, in {settings.timeout_s:g} s (rollout.timeout_s)"
                )
        broadcast_object_list(result)
        if result[1] is not None:
            raise TrainingError(result[1])
        found: T = result[0]
        return found


def _in_prefix_order(prompts: list[list[int]], sample: Callable[[list[list[int]]], Any]) -> tuple[Any, ...]:
    """Call `sample` with sorted prompts; return its columns (of a value per prompt, or `None`) in the given order."""
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    columns = sample([prompts[i] for i in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    return tuple([column[i] for i in back] if column is not None else None for column in columns)

"""What a trainer samples from with vLLM: in its own processes, or on a server. Both stand in for TRL's VLLMGeneration.

TRL calls `sync_weights` where the policy has changed and `generate` for the rollouts of a step. Here a sync ends with
the engine's log-probabilities compared with the policy's, and prompts go to it in the order of their prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import safetensors.torch
import torch
from accelerate.utils import broadcast_object_list, gather_object, is_peft_model
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from think_as_locals.generation import vllm_engine
from think_as_locals.generation.server_engine import START, Completion, VLLMServer
from think_as_locals.training.adapters import merged_parameters
from think_as_locals.training.probe import LIKELIEST, TOKENS, Probe
from think_as_locals.types import ServerError, TrainingError

T = TypeVar("T")
_RESTARTS = 3  # times that a server may come back with other weights while it samples one step's rollouts


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
        timeout_s: Seconds in which it must have answered.
        weights: Folder through which weights reach it.
    """

    dtype: str
    revision: str | None
    eos_token_ids: frozenset[int]
    probe: Callable[[Any], Probe]
    log: Callable[[str, float], None]
    url: str
    timeout_s: float
    weights: Path


class _Checked(VLLMGeneration):
    """What both engines share."""

    def __init__(self, *, settings: EngineSettings, **trl: Any) -> None:
        self._settings = settings
        self._probe = settings.probe(trl["accelerator"])
        super().__init__(**trl)

    def sync_weights(self) -> None:
        """Give the engine the policy's weights.

        Raises:
            TrainingError: on all ranks, where it does not then compute what the policy does.
        """
        self._send_weights()
        self._settings.log("rollout/probe_difference", self._probe.compare(self.model, self._probed()))

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Any:
        """As TRL's, with neighbouring prompts sharing what they can; logs how much that was."""
        order = sorted(range(len(prompts)), key=prompts.__getitem__)
        before = self._prefix_cache()
        found = self._sample([prompts[i] for i in order], num_generations, profiler)
        hits, looked_for = (after - at for after, at in zip(self._prefix_cache(), before, strict=True))
        sums = self.accelerator.reduce(torch.tensor([hits, looked_for], device=self.accelerator.device))
        self._settings.log("rollout/prefix_cache_hit_rate", float(sums[0] / sums[1].clamp(min=1)))
        back = sorted(range(len(order)), key=order.__getitem__)
        return tuple([column[i] for i in back] if column is not None else None for column in found)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        if is_peft_model(self.model) and not self._dist.is_fsdp:
            yield from merged_parameters(self.model, self._dist.gather_params)
        else:
            yield from super()._iter_named_params()

    def _send_weights(self) -> None:
        raise NotImplementedError

    def _probed(self) -> list[Completion]:
        raise NotImplementedError

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        raise NotImplementedError

    def _prefix_cache(self) -> tuple[float, float]:
        """Prompt tokens found in the prefix cache so far, and looked for."""
        raise NotImplementedError


class ColocatedEngine(_Checked):
    """TRL's colocated vLLM, of the type and revision that the run says."""

    def _init_vllm(self) -> None:
        vllm_engine.prepare()
        on_cpu = not torch.cuda.is_available()
        original = vllm_generation.LLM
        vllm_generation.LLM = partial(
            original,
            dtype=self._settings.dtype,
            revision=self._settings.revision,
            enforce_eager=on_cpu,
            disable_log_stats=False,  # they count what the prefix cache found
        )
        try:
            super()._init_vllm()
        finally:
            vllm_generation.LLM = original

    def _send_weights(self) -> None:
        super(_Checked, self).sync_weights()

    def _probed(self) -> list[Completion]:
        from vllm import SamplingParams

        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["kv_cache"])
        params = SamplingParams(
            temperature=0.0, max_tokens=TOKENS, logprobs=LIKELIEST, ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": ids} for ids in self._probe.prompts]
        outputs = [output.outputs[0] for output in self.llm.generate(prompts, params, use_tqdm=False)]
        return [
            Completion(
                list(output.token_ids),
                [],
                [{token: found.logprob for token, found in place.items()} for place in output.logprobs],
            )
            for output in outputs
        ]

    def _sample(self, prompts: list[list[int]], num_generations: int, profiler: Any) -> Any:
        return super(_Checked, self).generate(prompts, None, num_generations, profiler)

    def _prefix_cache(self) -> tuple[float, float]:
        counts = {metric.name: metric.value for metric in self.llm.get_metrics() if "prefix_cache" in metric.name}
        return counts["vllm:prefix_cache_hits"], counts["vllm:prefix_cache_queries"]


class ServedEngine(_Checked):
    """A vLLM server, asked by the main process for all ranks; weights reach it as safetensors that both can read."""

    _server: VLLMServer  # the main process alone has it

    def _init_vllm(self) -> None:
        self._loaded = ""
        self._on_main(self._connect)

    def complete(self, prompts: Sequence[list[int]], **parameters: Any) -> list[Completion]:
        """A completion for each prompt of this rank; all ranks call it together.

        Raises:
            TrainingError: on all ranks, where the server fails.
        """
        counts = gather_object([len(prompts)])
        everyone = gather_object(list(prompts))
        for _ in range(_RESTARTS):
            if (found := self._on_main(lambda: self._current(everyone, parameters))) is not None:
                first = sum(counts[: self.accelerator.process_index])
                return found[first : first + len(prompts)]
            self.sync_weights()  # it was started anew, and has those it was started with
        raise TrainingError(
            f"the vLLM server at {self._settings.url} came back with other weights {_RESTARTS} times while it sampled; "
            "its log says why it stops, and that no other run gives it weights"
        )

    def _current(self, prompts: list[list[int]], parameters: dict[str, Any]) -> list[Completion] | None:
        """Completions by the weights of the last sync, or `None` where the server has others now."""
        order = sorted(range(len(prompts)), key=prompts.__getitem__)
        found = self._server.complete([prompts[i] for i in order], **parameters)
        if self._server.state()["weights"] != self._loaded:
            return None
        return [found[i] for i in sorted(range(len(order)), key=order.__getitem__)]

    def _connect(self) -> None:
        self._server = VLLMServer(self._settings.url, self._settings.timeout_s)
        expected = {"dtype": self._settings.dtype, "logprobs_mode": "processed_logprobs"}
        state = self._server.state()
        if wrong := {name: state[name] for name, value in expected.items() if state[name] != value}:
            raise ServerError(f"the vLLM server at {self._settings.url} has {wrong}, expected {expected}: {START}")

    def _send_weights(self) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self._iter_named_params():  # gathers what is sharded, so every rank goes through it
            if self.accelerator.is_main_process:
                tensors[name] = parameter.detach().to("cpu", copy=True).contiguous()
        self._on_main(lambda: self._load(tensors))

    def _load(self, tensors: dict[str, torch.Tensor]) -> None:
        self._settings.weights.mkdir(parents=True, exist_ok=True)
        # A name that no other sync and no other run has: by it the server says what it holds.
        with TemporaryDirectory(dir=self._settings.weights, prefix="sync-") as folder:
            safetensors.torch.save_file(tensors, Path(folder, "model.safetensors"), metadata={"format": "pt"})
            self._server.load_weights(folder)
            if (holds := self._server.state()["weights"]) != folder:
                raise ServerError(f"the vLLM server at {self._settings.url} holds {holds} after it was given {folder}")
            self._loaded = folder

    def _probed(self) -> list[Completion]:
        asked = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": LIKELIEST, "ignore_eos": True}
        return self._on_main(lambda: self._server.complete(self._probe.prompts, **asked))

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

    def _on_main(self, work: Callable[[], T]) -> T:
        """What the main process makes of the server, on all ranks; where it fails, all end alike."""
        result: list[Any] = [None, None]
        if self.accelerator.is_main_process:
            try:
                result[0] = work()
            except ServerError as error:
                result[1] = f"{error}"
            except Exception as error:  # of whatever kind: the other ranks wait
                result[1] = f"{type(error).__name__}: {error}"
        broadcast_object_list(result)
        if result[1] is not None:
            raise TrainingError(result[1])
        found: T = result[0]
        return found

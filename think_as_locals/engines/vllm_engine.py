"""Rollouts from a vLLM engine, which is loaded for an evaluation or shared with a trainer; a check of its weights."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from threading import Thread
from typing import Any, TypedDict

import torch
from torch import Tensor

from think_as_locals.engines.engine import Chat, Sampling, TokenEngine
from think_as_locals.runtime.output import is_verbose
from think_as_locals.types import ModelError, TrainingError, cut

AT_ONCE = 256
"""Requests that the vLLM of a training processes together: it also judges all items of an evaluation."""
_CLOSING_S = 20.0  # for vLLM's processes to end by themselves: killed, they leave shared memory behind


def prepare() -> None:
    """Set what vLLM reads when it is imported; environment variables that are set already are kept."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # To ask for a GPU without starting CUDA, which vLLM's forked engine core could not use then.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if find_spec("vllm") and not torch.cuda.is_available():
        # Bound threads would starve the other processes on these cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        keep_weights_plain()


def end_with_owner() -> None:
    """End a vLLM process when its parent has ended, even by SIGKILL; otherwise it would stay and hold a GPU."""
    # vLLM calls this in every process that it starts, as a plugin (pyproject.toml).
    if owner := multiprocessing.parent_process():

        def wait() -> None:
            owner.join()
            os._exit(1)

        Thread(target=wait, name="owner", daemon=True).start()


def keep_weights_plain() -> None:
    """Keep oneDNN from packing linear weights on CPU: a weight sync would fail, or leave a tied LM head stale."""
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False


class AdapterLimits(TypedDict):
    """The largest rank of LoRA adapters that an engine can apply (0: none), and the layers they may adapt."""

    rank: int
    modules: list[str]


def adapter_limits(model_runner: Any) -> AdapterLimits:
    """Return the adapter limits of a vLLM worker, given its model runner."""
    if model_runner.lora_config is None:
        return {"rank": 0, "modules": []}
    manager = model_runner.lora_manager._adapter_manager
    packed = manager.packed_modules_mapping  # vLLM computes q_proj, k_proj and v_proj in one layer
    modules = {part for name in manager.supported_lora_modules for part in packed.get(name, [name])}
    return {"rank": model_runner.lora_config.max_lora_rank, "modules": sorted(modules)}


@dataclass(frozen=True, slots=True)
class VLLMEngine(TokenEngine):
    """A vLLM `LLM`, which batches by itself."""

    llm: Any
    chat: Chat

    @classmethod
    def load(
        cls,
        path: str,
        *,
        dtype: str,
        template_kwargs: Mapping[str, Any],
        revision: str | None = None,
        max_model_length: int | None = None,
        **options: Any,
    ) -> VLLMEngine:
        """Load a judge; a ModelError without a chat template. `options` are those of conf/rm/shared/vllm.yaml."""
        prepare()
        from vllm import LLM

        chat = Chat.load(path, revision, template_kwargs)
        on_cpu = not torch.cuda.is_available()
        options |= {"dtype": dtype, "enforce_eager": on_cpu, "max_model_len": max_model_length}
        if on_cpu:  # where vLLM cannot prefill a prompt in parts for a request with a seed
            options["enable_chunked_prefill"] = False
        options |= {"disable_log_stats": True, "use_tqdm_on_load": is_verbose()}
        try:
            llm = LLM(model=path, revision=revision, **options)
        except (RuntimeError, ValueError) as error:  # of the process with the model, which writes why to stderr
            reason = cut(" ".join(str(error).split()), 500)
            raise ModelError(f"{path}: vLLM cannot load it, for the reason that it wrote above: {reason}") from error
        return cls(llm, replace(chat, positions=llm.model_config.max_model_len))

    def close(self) -> None:
        """End vLLM's engine core, the process with the model, and wait for it; sampling threads get a ModelError."""
        self.llm.llm_engine.engine_core.shutdown(_CLOSING_S)

    def sample_tokens(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[Sequence[int]]:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_completion_length,
            seed=sampling.seed,
            stop_token_ids=sorted(self.chat.eos_token_ids),
            detokenize=False,
        )
        return [output.token_ids for output in self._generate(prompts, params)]

    def next_log_probs(
        self, contexts: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return log-probabilities from one sampled token; contexts are mostly in the prefix cache."""
        from vllm import SamplingParams

        params = [
            SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=list(ids), detokenize=False)
            for ids in candidates
        ]
        first_logprobs = [output.logprobs[0] for output in self._generate(contexts, params)]
        return [
            [logprobs[token].logprob for token in ids] for logprobs, ids in zip(first_logprobs, candidates, strict=True)
        ]

    def _generate(self, prompts: Sequence[Sequence[int]], params: Any) -> list[Any]:
        """Return one completion for each prompt; a ModelError if vLLM was stopped before they were complete."""
        inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs = [output.outputs[0] for output in self.llm.generate(inputs, params, use_tqdm=False)]
        if any(output.finish_reason == "abort" for output in outputs):
            raise ModelError("vLLM was stopped, by a signal or by close(), before its completions were whole")
        return outputs


# --- A checksum of one tensor of an engine, which shows whether a weight sync has arrived ---
#
# An update by 1e-6 changes 4 % of a matrix's elements in bfloat16 (of standard deviation .02): too little for
# log-probabilities to show, but not for the bits. The tensor is one that training has changed since the last sync,
# among those that vLLM holds under the name by which they are sent, as a whole or divided over its workers: the matrix
# behind attention, of an adapter its B.

_READABLE = (".o_proj", ".out_proj", ".c_proj", ".dense")
_WEIGHT, _ADAPTER = ".weight", ".lora_B.weight"
_ADAPTER_PREFIX = "base_model.model."  # of the names by which PEFT saves an adapter
_INTEGERS = {2: torch.int16, 4: torch.int32}


class ChecksumRequest(TypedDict):
    """The tensor whose checksum is requested, and the type it was sent in."""

    name: str
    dtype: str


def checksum(tensor: Tensor) -> int:
    """Return the sum of the squares of a tensor's elements, read as integers: those of its parts add up."""
    bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()]).int()
    return int((bits * bits).sum())


def read_checksum(model_runner: Any, request: ChecksumRequest) -> int | None:
    """Return the checksum of a vLLM worker's part of a tensor, of an adapter the last; `None` if it has none so."""
    name = request["name"]
    if name.endswith(_ADAPTER):
        manager = model_runner.lora_manager._adapter_manager
        slot, _ = max(enumerate(manager.lora_index_to_id), key=lambda each: each[1] or 0)
        layer = manager.modules.get(name.removeprefix(_ADAPTER_PREFIX).removesuffix(_ADAPTER))
        tensor = layer.lora_b_stacked[0][slot] if layer is not None else None
    else:
        named = model_runner.get_model().named_parameters()  # `base_layer`: where vLLM may apply an adapter
        tensor = {own.replace(".base_layer", ""): parameter for own, parameter in named}.get(name)
    if tensor is None or tensor.dtype != getattr(torch, request["dtype"]):  # it may be quantised
        return None
    return checksum(tensor)


class SentTensors:
    """The tensors of the weight syncs of a process: which one to read back, and the checksum expected."""

    def __init__(self, dtype: str) -> None:
        self.request: ChecksumRequest | None = None
        self._dtype = dtype
        self._last: dict[str, int] = {}
        self._has_changed = False

    def begin(self) -> None:
        """Begin another sync."""
        self.request, self._has_changed = None, False

    def add(self, name: str, tensor: Tensor) -> None:
        """Note a tensor that is sent, in the engine's type."""
        suffix = _ADAPTER if name.endswith(_ADAPTER) else _WEIGHT
        if self._has_changed or not name.removesuffix(suffix).endswith(_READABLE):
            return
        found = checksum(tensor)
        self._has_changed = found != self._last.get(name)
        if self.request is None or self._has_changed:
            self.request = {"name": name, "dtype": self._dtype}
        self._last[name] = found

    @property
    def expected(self) -> int:
        """The checksum of the requested tensor."""
        return self._last[self.request["name"]] if self.request else 0


def check_sync(name: str, expected: int, workers: Sequence[int | None], where: str) -> bool:
    """Return whether any worker could read a tensor; a TrainingError if it is not the one that was sent."""
    found = [each for each in workers if each is not None]
    if found and sum(found) != expected and set(found) != {expected}:  # divided over the workers, or whole on each
        raise TrainingError(
            f"after a weight sync {name} in {where} differs from the policy's, expected the same bits: the sync did "
            "not arrive. Nothing was sampled with it"
        )
    return bool(found)

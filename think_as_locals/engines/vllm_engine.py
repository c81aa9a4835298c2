"""Rollouts from a vLLM engine, which is loaded for an evaluation or shared with a trainer in this process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from threading import Thread
from typing import Any, TypedDict

import torch

from think_as_locals.engines.engine import Chat, Sampling, TokenEngine
from think_as_locals.runtime.output import is_verbose
from think_as_locals.types import ModelError, cut

AT_ONCE = 256
"""Requests that the vLLM of a training processes together: it also judges all items of an evaluation."""
_CLOSING_S = 20.0  # for vLLM's processes to end by themselves: killed, they leave shared memory behind


def prepare() -> None:
    """Set what vLLM reads when it is imported; environment variables that are set already are kept."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if find_spec("vllm") and not torch.cuda.is_available():
        # Bound threads would starve the other processes on these cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        keep_weights_plain()


def end_with_owner() -> None:
    """End a vLLM process when its parent has ended, even by SIGKILL; otherwise it would stay and hold a GPU.

    vLLM calls this in every process that it starts, as a plugin (pyproject.toml).
    """
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

"""Rollouts from vLLM: loaded for an evaluation, or shared with a trainer that colocates it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypedDict

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from think_as_locals.generation.engine import Chat, Messages, Sampling, eos_token_ids, expect_template
from think_as_locals.generation.model_files import model_file
from think_as_locals.types import Rollout

_CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process, where weights can be synchronised
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads would starve the trainer
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
}


def prepare() -> None:
    """Settings that must stand before vLLM is imported; what the environment says already is left alone."""
    import torch

    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if torch.cuda.is_available() or not find_spec("vllm"):
        return
    for name, value in _CPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    keep_weights_plain()


def keep_weights_plain() -> None:
    """On CPU, keep oneDNN from packing linear weights: a weight sync would fail, or leave a tied LM head stale."""
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False


class AdapterLimits(TypedDict):
    """The largest rank (0: none at all) and the names of the layers that an engine's LoRA adapters may have."""

    rank: int
    modules: list[str]


def adapter_limits(model_runner: Any) -> AdapterLimits:
    """What adapters a worker of vLLM takes, given its model runner."""
    if model_runner.lora_config is None:
        return {"rank": 0, "modules": []}
    manager = model_runner.lora_manager._adapter_manager
    packed = manager.packed_modules_mapping  # vLLM computes q_proj, k_proj and v_proj in one layer
    modules = {part for name in manager.supported_lora_modules for part in packed.get(name, [name])}
    return {"rank": model_runner.lora_config.max_lora_rank, "modules": sorted(modules)}


@dataclass(frozen=True, slots=True)
class VLLMEngine:
    """A vLLM `LLM` and the chat it speaks."""

    llm: Any
    chat: Chat

    @classmethod
    def load(
        cls, path: str, *, dtype: str, template_kwargs: Mapping[str, Any], revision: str | None = None
    ) -> VLLMEngine:
        """Load a judge from a directory or the Hub.

        Raises:
            ModelError: there is no chat template.
        """
        prepare()
        from vllm import LLM

        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
        expect_template(path, tokenizer)
        config = generation_config(path, revision)
        llm = LLM(model=path, revision=revision, dtype=dtype, enforce_eager=_on_cpu(), disable_log_stats=True)
        ends, positions = eos_token_ids(tokenizer, config), llm.model_config.max_model_len
        return cls(llm, Chat(tokenizer, template_kwargs, ends, positions))

    def generate(self, conversations: Sequence[Messages], sampling: Sampling) -> list[Rollout]:
        """One rollout for each conversation, in their order; vLLM batches by itself."""
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": ids} for ids in self.chat.encode(conversations)]
        params = SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_completion_length,
            seed=sampling.seed,
            stop_token_ids=sorted(self.chat.eos_token_ids),
            detokenize=False,
        )
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [self.chat.rollout(output.outputs[0].token_ids) for output in outputs]

    def next_log_probs(
        self, contexts: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """As `ScoringEngine.next_log_probs`: one token each, behind a context that the prefix cache mostly holds."""
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": list(context)} for context in contexts]
        params = [
            SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=list(ids), detokenize=False)
            for ids in candidates
        ]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        places = [output.outputs[0].logprobs[0] for output in outputs]
        return [[place[token].logprob for token in ids] for place, ids in zip(places, candidates, strict=True)]


def generation_config(path: str, revision: str | None) -> GenerationConfig:
    """A model's, as transformers loads it: what its config.json says where it has no generation_config.json."""
    if model_file(path, "generation_config.json", revision):
        return GenerationConfig.from_pretrained(path, revision=revision)
    return GenerationConfig.from_model_config(AutoConfig.from_pretrained(path, revision=revision))


def _on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()

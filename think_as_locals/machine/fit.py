"""Fit a run to data and GPU: the length of a colocated vLLM's sequences, its share of memory, and what cannot fit."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from think_as_locals.config.checks import load_config
from think_as_locals.config.launch import Launch, read_launch
from think_as_locals.config.model_schema import GrpoConfig, PolicyConfig
from think_as_locals.config.schema import RunConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.machine import memory
from think_as_locals.machine.memory import GB
from think_as_locals.runtime.gpus import gpu_bytes, num_gpus
from think_as_locals.runtime.ranks import current_launch
from think_as_locals.types import ConfigError, PreflightError

if TYPE_CHECKING:
    from think_as_locals.data.load import TrainingData
    from think_as_locals.types import Item

Config = TypeVar("Config", RunConfig, PolicyConfig)

TENSOR_PARALLEL = "grpo.vllm_tensor_parallel_size"
"""The number of ranks among which the weights of a colocated vLLM are divided."""

_MARGIN = 64  # tokens: other orders and protocols of an item have slightly longer prompts
_STEP = 256  # lengths are multiples of this


def fitted(config: Config, longest: Callable[[], int], recipe: str, overrides: Sequence[str]) -> Config:
    """Return the configuration with length and memory share of a colocated vLLM filled in where they are null.

    `longest` returns the tokens of the longest sequence; it is called only if needed, as it may load a tokenizer.

    Raises:
        PreflightError: with sequences of that length, the run is too large for its GPUs.
    """
    if config.rollout.backend != "vllm_colocate":
        return config
    if config.rollout.max_model_length is None and config.model.path is not None:
        config = _with_rollout(config, {"max_model_length": longest()})
    if (gpu := gpu_bytes()) is None:
        return config
    if faults := memory_faults(config, recipe, overrides):
        raise PreflightError(f"{faults[0]} (sequences of {config.rollout.max_model_length} tokens)")
    if config.rollout.gpu_memory_utilization is None:
        counts = memory.count(config)
        share = memory.engine_share(config, counts, memory.estimate(config, current_launch(), counts), gpu)
        config = _with_rollout(config, {"gpu_memory_utilization": share})
    return config


def _with_rollout(config: Config, values: Mapping[str, float | None]) -> Config:
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=values)})


def longest_sequence(config: RunConfig, data: TrainingData) -> int:
    """Return the tokens of a run's longest prompt and a whole completion, at most the model's limit."""
    from think_as_locals.judging import render
    from think_as_locals.training.grpo import load_chat

    chat = load_chat(config, str(config.model.path))

    def lengths(items: Iterable[Item]) -> list[int]:
        shown = {"seed": config.seed, "special_tokens": chat.special_tokens, **config.prompt.arguments()}
        return [len(ids) for ids in chat.encode([render(item, **shown) for item in items])]

    limits = [config.sources[name].max_prompt_tokens for name in data.sources]
    trained = [n for n, limit in zip(lengths(data.train), limits, strict=True) if limit is None or n <= limit]
    measured = lengths(dict.fromkeys(item for each in data.sets.values() for item in each.items))
    return _rounded(config, max(trained + measured) + _MARGIN + config.grpo.max_completion_length)


def longest_answer(config: PolicyConfig, prompts: Iterable[str]) -> int:
    """As `longest_sequence`, for the prompts of a policy's training and tasks."""
    from think_as_locals.training.grpo import load_chat

    asked = [[{"role": "user", "content": prompt}] for prompt in dict.fromkeys(prompts)]
    lengths = [config.grpo.max_completion_length, *(task.max_completion_length for task in config.tasks.values())]
    return _rounded(config, max(map(len, load_chat(config, str(config.model.path)).encode(asked))) + max(lengths))


def _rounded(config: GrpoConfig, tokens: int) -> int:
    return min(-(-tokens // _STEP) * _STEP, memory.count(config).positions)


def memory_faults(config: GrpoConfig | ScpoConfig, recipe: str, overrides: Sequence[str]) -> list[str]:
    """Return a fault, with a command that fits, if a GPU of this machine is too small for a run as launched."""
    if (gpu := gpu_bytes()) is None:
        return []
    try:
        counts = memory.count(config)
    except ConfigError:  # reported by the check of the model
        return []
    launch = current_launch()
    needed = needed_bytes(config, launch, counts)
    if needed <= gpu:
        return []
    got = f"memory: each of {launch.processes} processes needs about {needed / GB:.0f} GB, a GPU has {gpu / GB:.0f}"
    line = fitting_command(config, recipe, overrides, gpu, max(num_gpus(), launch.processes // launch.machines))
    return [f"{got}; this fits: {line}" if line else f"{got}; no file of launch/ fits, even with lora=rank16"]


def needed_bytes(config: GrpoConfig | ScpoConfig, launch: Launch, counts: memory.Counts) -> float:
    """Return the bytes of memory that each GPU must have."""
    return memory.gpu_needed(config, memory.estimate(config, launch, counts), memory.engine(config, counts))


def fitting_command(
    config: GrpoConfig | ScpoConfig, recipe: str, overrides: Sequence[str], gpu: float, gpus: int
) -> str | None:
    """Return a command that fits on nodes with `gpus` GPUs of `gpu` bytes, or `None`.

    It tries more sharding first, then a vLLM that is divided among GPUs, then an adapter.
    """
    plain = [text for text in overrides if not text.startswith("rollout.gpu_memory_utilization=")]
    files = ("gpu8_zero2", "gpu8_zero3", "nodes_zero3") if gpus > 1 else ("single",)
    colocated = not isinstance(config, ScpoConfig) and config.rollout.backend == "vllm_colocate"
    divided = [[f"{TENSOR_PARALLEL}={ranks}"] for ranks in (2, 4, 8) if colocated and gpus % ranks == 0]
    for adapter in [[], ["lora=rank16"]][: 1 if config.lora else 2]:
        counts: memory.Counts | None = None
        for engine in [[], *divided]:
            tried = load_config(recipe, words := [*plain, *engine, *adapter])
            if not isinstance(tried, RunConfig | PolicyConfig | ScpoConfig):
                return None
            counts = counts or memory.count(tried)  # takes a second for a large model
            for name in files:
                file = read_launch(name)
                launch = replace(file, processes=gpus * file.machines)
                if needed_bytes(tried, launch, counts) <= gpu:
                    number = [] if launch.processes == file.processes else ["--num_processes", str(launch.processes)]
                    words = ["--config_file", f"launch/{name}.yaml", *number, recipe, *words]
                    return shlex.join(["accelerate", "launch", *words])
    return None

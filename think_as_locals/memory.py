"""How much memory of each GPU a run needs, before one has it: an estimate in parts, each with its formula.

Weights, gradients and optimizer states follow ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 3): with N
parameters of b bytes, Adam under DeepSpeed takes b N for the weights, b N for the gradients and 12 N for a float32
copy and two moments; ZeRO-1 divides the last among the processes, ZeRO-2 the last two, ZeRO-3 all. Without DeepSpeed
torch's AdamW keeps its two moments in the type of the weights and no copy of them: weights that are all trained in
bfloat16 are held in float32 (`training/arguments.py`). Activations follow Korthikanti et al. 2022 (arXiv 2205.05198,
section 4): 34 bytes for each token, unit of width and layer in half precision, of which gradient checkpointing keeps 2
for each layer and 34 for one. What CUDA, NCCL and fragmentation take is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from think_as_locals.schema import RunConfig
from think_as_locals.types import ConfigError

GB = 1e9
PROMPT_TOKENS = 1024
"""What a prompt is taken to be long (ours: an item of four responses of 150 words; no key of a recipe says it)."""

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ADAM_COPIES = 12  # bytes of each parameter: a float32 copy and two moments
_ACTIVATIONS = 17  # numbers of each token, unit of width and layer
_DIVIDED = {"weights": 3, "gradients": 2, "optimizer": 1}  # from which ZeRO stage on


@dataclass(frozen=True, slots=True)
class Launch:
    """What memory depends on in an accelerate configuration.

    Args:
        kind: As accelerate calls it: NO, MULTI_GPU, DEEPSPEED, FSDP.
        zero_stage: Of DeepSpeed; FSDP2 shards what stage 3 does; 0 for none.
        processes: In all.
    """

    kind: str
    zero_stage: int
    processes: int


def read_launch(path: Path) -> Launch:
    """Of an accelerate configuration as a file.

    Example:
        >>> from think_as_locals.composition import ASSETS
        >>> read_launch(ASSETS / "launch" / "gpu8_zero2.yaml")
        Launch(kind='DEEPSPEED', zero_stage=2, processes=8)
    """
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    kind = str(values["distributed_type"])
    stages = {"DEEPSPEED": values.get("deepspeed_config", {}).get("zero_stage", 0), "FSDP": 3}
    return Launch(kind, int(stages.get(kind, 0)), int(values["num_processes"]))


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a judge: parameters, those that are trained, width, decoder layers."""

    parameters: int
    trained: int
    hidden_size: int
    layers: int


def count(config: RunConfig) -> Counts:
    """Sizes of a recipe's judge, exactly as transformers and PEFT build it, without any memory for it.

    A judge made from scratch has its tokenizer only once it is trained: counted with as many tokens as it may get.

    Raises:
        ConfigError: the model's config.json is neither in its directory nor in the local cache.
    """
    import torch
    from transformers import AutoModelForCausalLM

    architecture = _architecture(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(architecture)
        total = trained = sum(parameter.numel() for parameter in model.parameters())  # tied ones come once
        if config.lora:
            from peft import LoraConfig, get_peft_model

            adapted = get_peft_model(model, LoraConfig(**config.lora.model_dump()))
            trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
            total += trained
    return Counts(total, trained, architecture.hidden_size, architecture.num_hidden_layers)


def _architecture(config: RunConfig) -> Any:
    from transformers import AutoConfig

    from think_as_locals.models.scratch import scratch_config

    model = config.model
    if model.scratch is not None:
        return scratch_config(
            model.scratch, model.scratch.num_subwords + model.scratch.num_phrases, tie_word_embeddings=True
        )
    try:
        return AutoConfig.from_pretrained(
            str(Path(str(model.path)).expanduser()) if Path(str(model.path)).expanduser().is_dir() else model.path,
            revision=model.revision,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{model.path}: its config.json is not on this machine, so its size is not known; fetch it with "
            f"`hf download {model.path} config.json`, or set model.path to a directory"
        ) from error


def estimate(config: RunConfig, launch: Launch, counts: Counts) -> dict[str, float]:
    """Bytes that each process needs of its GPU, by what they are for, in GRPO.

    The reference model is there where `grpo.beta` is above 0 and all weights are trained. A colocated vLLM is not in
    it: it takes `rollout.gpu_memory_utilization` of the GPU, whatever that has.

    Example:
        >>> from think_as_locals.config import load_recipe
        >>> recipe = load_recipe("recipes/quickstart.yaml", ["model.dtype=bfloat16", "run.name=mine"])
        >>> states = estimate(recipe, Launch("DEEPSPEED", 2, 64), Counts(7_500_000_000, 7_500_000_000, 4096, 32))
        >>> round((states["weights"] + states["gradients"] + states["optimizer"]) / GB, 1)  # figure 1 of the ZeRO paper
        16.6
    """
    size = _BYTES[config.model.dtype]
    copies = launch.kind == "DEEPSPEED" or config.lora is not None
    held = size if copies or config.model.dtype == "float16" else 4
    whole, trained = _state_bytes(launch, counts, held, config.lora is not None)
    states = {"weights": whole, **trained}
    divided = {
        name: states[name] / (launch.processes if launch.zero_stage >= stage else 1) for name, stage in _DIVIDED.items()
    }
    reference = whole if config.grpo.beta > 0 and config.lora is None else 0.0
    return {
        **divided,
        "reference model": reference / (launch.processes if launch.zero_stage == 3 else 1),
        "activations": _activations(config, counts, size),
    }


def _state_bytes(launch: Launch, counts: Counts, size: int, lora: bool) -> tuple[float, Mapping[str, float]]:
    """Of the weights, and of gradients and optimizer, before they are divided."""
    if launch.kind == "FSDP":  # accelerate has it train float32 weights wherever it computes in half precision
        size = 4
    # PEFT keeps adapters in float32; TRL has it not do so under ZeRO-3 (huggingface/trl#6089).
    own = 4 if lora and launch.zero_stage < 3 else size
    trained = float(counts.trained * own)
    whole = (counts.parameters - counts.trained) * size + trained
    if launch.kind == "DEEPSPEED":
        return whole, {"gradients": trained, "optimizer": float(_ADAM_COPIES * counts.trained)}
    # DistributedDataParallel's buckets are gradients once more.
    gradients = 2 * trained if launch.kind == "MULTI_GPU" else trained
    return whole, {"gradients": gradients, "optimizer": 2 * trained}


def _activations(config: RunConfig, counts: Counts, size: int) -> float:
    """Of one micro-step, at the longest completions; a group's prompt is there once (`training/shared_prefix.py`)."""
    rows = config.grpo.per_device_train_batch_size
    prompts = max(1, rows // config.grpo.num_generations)
    tokens = prompts * PROMPT_TOKENS + rows * config.grpo.max_completion_length
    if not config.grpo.gradient_checkpointing:
        return float(counts.layers * tokens * counts.hidden_size * _ACTIVATIONS * size)
    return float((counts.layers + _ACTIVATIONS) * tokens * counts.hidden_size * size)


def gpu_needed(config: RunConfig, parts: Mapping[str, float]) -> float:
    """Bytes that a GPU must have for these parts, beside a colocated vLLM."""
    colocated = config.rollout.backend == "vllm_colocate"
    return sum(parts.values()) / (1 - config.rollout.gpu_memory_utilization * colocated)

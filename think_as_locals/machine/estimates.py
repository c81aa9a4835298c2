"""Estimate a training's memory, by its model's configuration and its launch, and its tokens a second.

With N parameters of b bytes, Adam under DeepSpeed takes b N for the weights, b N for the gradients and 12 N for a
float32 copy and two moments; ZeRO-1 divides the last among the processes, ZeRO-2 the last two, ZeRO-3 all (arXiv
1910.02054, section 3). Without DeepSpeed torch's AdamW keeps two moments in the type of the weights, and no copy.

Activations are `ACTIVATIONS` numbers for each token, unit of width and layer (arXiv 2205.05198, section 4); gradient
checkpointing keeps one number, and the rest for one layer at a time. A colocated vLLM has its own share of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from think_as_locals.config.launch import Launch
from think_as_locals.config.model_schema import TrainingConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.runtime.gpus import gpus
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.runtime.ranks import current_launch
from think_as_locals.training.throughput import operations_per_token, product_rate
from think_as_locals.types import ConfigError, ThinkAsLocalsError

GB = 1e9
PROMPT_TOKENS = 1024
"""Assumed tokens of a prompt: an item with four responses of 150 words, or in SCPO a prompt with a response."""
ACTIVATIONS = 17

_BYTES = {"float32": 4, "bfloat16": 2}
_ADAM = 12  # bytes of each parameter under DeepSpeed: a float32 copy and two moments
_DIVIDED = {"weights": 3, "gradients": 2, "optimizer": 1}  # divided from this ZeRO stage on
_WORTHWHILE = 1.5  # times as fast


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a model: parameters, how many of them are trained, width and layers."""

    parameters: int
    trained: int
    hidden_size: int
    layers: int


def count(config: TrainingConfig) -> Counts:
    """Return the sizes of a recipe's model, as transformers and PEFT build it, without allocating it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    from think_as_locals.reward_models.scratch import scratch_config

    model, is_scpo = config.model, isinstance(config, ScpoConfig)
    if (scratch := model.scratch) is not None:  # its tokenizer does not exist yet: the most tokens are assumed
        architecture: Any = scratch_config(
            scratch, scratch.num_subwords + scratch.num_phrases, tie_word_embeddings=True
        )
    else:
        folder = Path(str(model.path)).expanduser()
        source = str(folder if folder.is_dir() else model.path)
        known = {"revision": model.revision, "local_files_only": True, "trust_remote_code": False}
        with reading_model(source):
            architecture = AutoConfig.from_pretrained(source, **known)
    kind = AutoModelForSequenceClassification if is_scpo else AutoModelForCausalLM
    if type(architecture) not in kind._model_mapping:
        raise ConfigError(f"{model.path}: transformers has no {kind.__name__} for {architecture.model_type}")
    with torch.device("meta"):
        built = kind.from_config(architecture)
        total = trained = built.num_parameters()
        if config.lora:
            from peft import LoraConfig, get_peft_model

            task = "SEQ_CLS" if is_scpo else None  # SEQ_CLS also trains the head
            adapted = get_peft_model(built, LoraConfig(**config.lora.model_dump(), task_type=task))
            trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
            total += trained
    text = architecture.get_text_config()
    return Counts(total, trained, text.hidden_size, text.num_hidden_layers)


def estimate(config: TrainingConfig, launch: Launch, counts: Counts) -> dict[str, float]:
    """Return the bytes that each process needs on its GPU, by part, beside a colocated vLLM."""
    lora, stage = config.lora is not None, launch.zero_stage
    half = launch.kind == "DEEPSPEED"  # without it what is trained is float32; PEFT's adapters, unless ZeRO-3 has them
    size = _BYTES[config.model.dtype] if half or lora else 4
    trained = float(counts.trained * (4 if lora and not (half and stage == 3) else size))
    frozen = float((counts.parameters - counts.trained) * size)
    states = {
        "weights": frozen + trained,
        "gradients": 2 * trained if launch.kind == "MULTI_GPU" else trained,  # DDP's buckets are a copy
        "optimizer": float(_ADAM * counts.trained) if launch.kind == "DEEPSPEED" else 2 * trained,
    }
    parts = {name: states[name] / (launch.processes if stage >= least else 1) for name, least in _DIVIDED.items()}
    if isinstance(config, ScpoConfig):
        parts["global RM"] = frozen if lora else states["weights"]
        tokens = 2 * config.scpo.per_device_train_batch_size * (config.scpo.max_length or PROMPT_TOKENS)
        checkpointing = config.scpo.gradient_checkpointing
    else:
        if config.grpo.beta and not lora:
            parts["reference model"] = parts["weights"]
        rows, checkpointing = config.grpo.per_device_train_batch_size, config.grpo.gradient_checkpointing
        prompts = max(1, rows // config.grpo.num_generations)  # once for each group
        tokens = prompts * PROMPT_TOKENS + rows * config.grpo.max_completion_length
    numbers = counts.layers + ACTIVATIONS if checkpointing else counts.layers * ACTIVATIONS
    parts["activations"] = float(_BYTES[config.model.dtype] * tokens * counts.hidden_size * numbers)
    return parts


def memory_faults(config: TrainingConfig) -> list[str]:
    """Return a fault if weights and optimizer states alone need more than a GPU of this machine has."""
    if not (sizes := [size for _, size in gpus()]):
        return []
    gpu, launch = min(sizes), current_launch()
    parts = estimate(config, launch, count(config))
    if (needed := parts["weights"] + parts["optimizer"]) <= gpu:
        return []
    got = f"weights and optimizer alone take {needed / GB:.0f} GB in each of {launch.processes} processes"
    remedy = "launch more of them with gpu8_zero3 or nodes_zero3, or train an adapter (lora=rank16)"
    return [f"memory: {got}, a GPU has {gpu / GB:.0f}: {remedy}"]


def estimates(config: TrainingConfig, launch: Launch) -> list[tuple[str, str]]:
    """Return lines about a training's memory and speed, each behind its name, or why they are not known."""
    try:
        counts = count(config)
    except ThinkAsLocalsError as error:
        return [("memory", f"not known: {error}")]
    parts = estimate(config, launch, counts)
    memory = (
        f"about {sum(parts.values()) / GB:.1f} GB for each of {launch.processes} (launch/{launch.name}.yaml): "
        f"{', '.join(f'{name} {size / GB:.1f}' for name, size in parts.items())}; "
        f"{counts.parameters / 1e6:,.1f} M parameters, {counts.trained / 1e6:,.1f} M trained"
    )
    section = config.scpo if isinstance(config, ScpoConfig) else config.grpo
    recomputed = 2 * counts.parameters if section.gradient_checkpointing else 0
    each, dtype = operations_per_token(counts.parameters, counts.trained) + recomputed, config.model.dtype
    rate = product_rate(dtype)
    speed = (
        f"about {rate / each:,.0f} tokens/s forward and backward on each device: {each / 1e9:.2g} G operations a "
        f"token, {rate / 1e9:,.0f} G a second in a {dtype} matrix product"
    )
    if config.model.path and dtype == "float32" and (half := product_rate("bfloat16")) > _WORTHWHILE * rate:
        speed += f"; model.dtype=bfloat16 is {half / rate:.1f} times as fast here"
    return [("memory", memory), ("speed", speed)]

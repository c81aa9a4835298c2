"""Estimate the GPU memory that a run needs, in parts, each with its formula, and fit a run to data and GPU.

With N parameters of b bytes, Adam under DeepSpeed takes b N for the weights, b N for the gradients and 12 N for a
float32 copy and two moments; ZeRO-1 divides the last among the processes, ZeRO-2 the last two, ZeRO-3 all (arXiv
1910.02054, section 3). Without DeepSpeed torch's AdamW keeps two moments in the type of the weights and no copy.

Activations are what autograd saves in each layer, counted on Qwen2, Qwen3, Llama, BERT, ModernBERT and DeBERTa
(`tests/machine/test_memory.py`), and the gradients of one layer. Gradient checkpointing keeps the input of each layer,
and the rest of one. An update of a 7B model with an adapter, without checkpointing, took 51.9 GB of an H100, within 5 %
of the estimate. A layer takes at least 34 bytes for each token and unit of width in half precision (arXiv 2205.05198,
section 4), and just that if its widths are not known. Autocast keeps copies of float32 weights until the end of the
forward pass, and without checkpointing longer.

A head that computes in float32 has its weights copied for each pass, and the gradient of the copy. A policy's reward
model is whole on each GPU.

A colocated vLLM also holds the whole model, in its share of the GPU: the weights, the keys and values of one
sequence of the longest length at least, without which it does not start, and 2 GB for its own work (assumed).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from think_as_locals.config.checks import load_config
from think_as_locals.config.launch import Launch, read_launch
from think_as_locals.config.model_schema import (
    ClassifierSection,
    GrpoConfig,
    ImplicitSection,
    JudgeSection,
    PolicyConfig,
    RewardModelSection,
    TrainingConfig,
)
from think_as_locals.config.schema import RunConfig, ScpoConfig
from think_as_locals.runtime.gpus import gpu_bytes, num_gpus
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.runtime.ranks import current_launch
from think_as_locals.types import ConfigError, ModelError, PreflightError

if TYPE_CHECKING:
    from think_as_locals.data.load import TrainingData

GB = 1e9
PROMPT_TOKENS = 1024
"""Assumed tokens of a prompt (an item with four responses of 150 words), or in SCPO of a prompt with a response."""
USABLE = 0.94
"""Share of a GPU that training and vLLM can use; CUDA and fragmentation take the rest (assumed)."""

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ADAM_COPIES = 12  # bytes of each parameter: a float32 copy and two moments
_ACTIVATIONS = 17  # numbers for each token, unit of width and layer, at least
_SCORES = 4  # numbers for each head and pair of tokens with eager attention: DeBERTa keeps 3.5 at 512 tokens (measured)
_SCORED = 448  # tokens: DeBERTa keeps at least what it would for so many, as it scores each against 512 distances
_ENGINE_WORK = 2e9  # bytes of vLLM's activations, graphs and sampling
_DIVIDED = {"weights": 3, "gradients": 2, "optimizer": 1}  # divided from this ZeRO stage on


@dataclass(frozen=True, slots=True)
class Layer:
    """Widths of a layer: of its queries, its keys and its feed-forward layer.

    A `gated` feed-forward layer multiplies two projections; layers that have one are taken to have RMS norms.
    `normalizes_heads` says whether queries and keys have norms of their own.
    """

    queries: int
    keys: int
    intermediate: int
    gated: bool
    normalizes_heads: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a model.

    `cached` is how many numbers its keys and values take for each token, in all layers; `head` is the parameters of its
    LM head, and `reward_model` the bytes of the model that rewards it, if there is one. `layer` is `None` if its
    configuration does not tell.
    """

    parameters: int
    trained: int
    hidden_size: int
    layers: int
    heads: int
    positions: int
    cached: int
    head: int = 0
    reward_model: int = 0
    layer: Layer | None = None


def count(config: TrainingConfig) -> Counts:
    """Return the sizes of a recipe's model, as transformers and PEFT build it, without allocating it.

    The tokenizer of a model made from scratch does not exist yet: its maximum number of tokens is assumed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    from think_as_locals.reward_models.scratch import scratch_config

    model, scratch = config.model, config.model.scratch
    if scratch is not None:
        tokens = scratch.num_subwords + scratch.num_phrases
        architecture: Any = scratch_config(scratch, tokens, tie_word_embeddings=True)
    else:
        architecture = _architecture(str(model.path), model.revision)
    is_scpo = isinstance(config, ScpoConfig)
    if is_scpo:
        architecture.num_labels = 1
    kind = AutoModelForSequenceClassification if is_scpo else AutoModelForCausalLM
    if type(architecture) not in kind._model_mapping:
        raise ConfigError(f"{model.path}: transformers has no {kind.__name__} for {architecture.model_type}")
    with torch.device("meta"):
        built = kind.from_config(architecture)
        total = trained = sum(parameter.numel() for parameter in built.parameters())  # tied ones only once
        embeddings = (built.get_input_embeddings(), built.get_output_embeddings())
        left_out = {id(each.weight) for each in embeddings if each is not None}
        shapes = {name: each.shape for name, each in built.named_parameters() if id(each) not in left_out}
        if config.lora:
            from peft import LoraConfig, get_peft_model

            task = "SEQ_CLS" if is_scpo else None  # SEQ_CLS also trains the head
            adapted = get_peft_model(built, LoraConfig(**config.lora.model_dump(), task_type=task))
            trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
            total += trained
    text = architecture.get_text_config()
    heads = getattr(text, "num_attention_heads", 0)  # a recurrent model has none
    positions = getattr(text, "max_position_embeddings", PROMPT_TOKENS)  # nor those with relative positions
    width = getattr(text, "head_dim", None) or text.hidden_size // max(1, heads)
    keys = (getattr(text, "num_key_value_heads", None) or heads) * width
    cached = 2 * text.num_hidden_layers * keys
    head = 0 if is_scpo else text.vocab_size * text.hidden_size
    reward_model = sum(map(_held_bytes, _models_of(config.rm))) if isinstance(config, PolicyConfig) else 0
    sizes = (text.hidden_size, text.num_hidden_layers, heads, positions, cached)
    return Counts(total, trained, *sizes, head, reward_model, _layer(text, heads * width, keys, shapes))


def _layer(text: Any, queries: int, keys: int, shapes: Mapping[str, tuple[int, ...]]) -> Layer | None:
    """Return the widths of the layers of a model with these parameters (no embeddings), or `None`."""
    intermediate = getattr(text, "intermediate_size", None)
    if not queries or not isinstance(intermediate, int):
        return None
    expert = getattr(text, "moe_intermediate_size", None) or intermediate
    intermediate = max(intermediate, expert * (getattr(text, "num_experts_per_tok", None) or 1))
    # ModernBERT has both projections in one matrix, which has no telling name.
    gated = any("gate" in name or shape[:1] == (2 * intermediate,) for name, shape in shapes.items())
    return Layer(queries, keys, intermediate, gated, any("q_norm" in name for name in shapes))


def _architecture(path: str, revision: str | None) -> Any:
    """Return the configuration of a model that is on this machine."""
    from transformers import AutoConfig

    folder = Path(path).expanduser()
    source = str(folder) if folder.is_dir() else path
    try:
        with reading_model(source):
            return AutoConfig.from_pretrained(source, revision=revision, local_files_only=True, trust_remote_code=False)
    except ModelError as error:
        if folder.is_dir():
            raise
        raise ConfigError(
            f"{path}: its config.json is not on this machine, so its size is not known; fetch it with "
            f"`hf download {path} config.json`, or set its path to a directory"
        ) from error


def _models_of(rm: RewardModelSection) -> list[tuple[str, str | None, str | None]]:
    """Return path, revision and type of the models that a reward model holds in this process."""
    match rm:
        case JudgeSection() | ClassifierSection():
            return [(rm.path, rm.revision, rm.dtype)]
        case ImplicitSection():
            reference = [(rm.reference, rm.reference_revision, rm.dtype)] if rm.reference else []
            return [(rm.path, rm.revision, rm.dtype), *reference]
    return []


def _held_bytes(model: tuple[str, str | None, str | None]) -> int:
    """Return the bytes of a model's weights; its head, a classifier's or of its own kind, does not count."""
    import torch
    from transformers import AutoModel

    path, revision, dtype = model
    architecture = _architecture(path, revision)
    with torch.device("meta"):
        parameters = AutoModel.from_config(architecture).num_parameters()
    return int(parameters) * _BYTES[dtype or str(architecture.dtype or "float32").removeprefix("torch.")]


def estimate(config: TrainingConfig, launch: Launch, counts: Counts) -> dict[str, float]:
    """Return the bytes that each process of GRPO or SCPO needs on its GPU, by part.

    There is a reference model if `grpo.beta` is above 0 and all weights are trained; SCPO's global RM is always there,
    whole on each process. A colocated vLLM is not included: see `engine`.
    """
    size, states = _BYTES[config.model.dtype], _states(config, launch, counts)
    lora = config.lora is not None
    parts = {
        name: states[name] / (launch.processes if launch.zero_stage >= stage else 1) for name, stage in _DIVIDED.items()
    }
    if isinstance(config, ScpoConfig):
        parts["global RM"] = float(size * (counts.parameters - (counts.trained if lora else 0)))
    else:
        reference = 0.0 if lora or config.grpo.beta == 0 else states["weights"]
        parts["reference model"] = reference / (launch.processes if launch.zero_stage == 3 else 1)
        copied = config.grpo.cast_lm_head_to_fp32 and size < 4 and (lora or launch.kind in ("DEEPSPEED", "FSDP"))
        parts["float32 head"] = 4.0 * counts.head * (1 if lora else 2) * copied
        if isinstance(config, PolicyConfig):
            parts["reward model"] = float(counts.reward_model)
    return {**parts, "activations": _activations(config, launch, counts)}


def _states(config: TrainingConfig, launch: Launch, counts: Counts) -> dict[str, float]:
    """Return the bytes of weights, gradients and optimizer before they are divided among processes."""
    size, lora = _BYTES[config.model.dtype], config.lora is not None
    # Without DeepSpeed all weights are trained in float32; under FSDP accelerate has the frozen ones in float32 too.
    if launch.kind == "FSDP" or not (launch.kind == "DEEPSPEED" or lora):
        size = 4
    # PEFT keeps adapters in float32, except in TRL under ZeRO-3 (huggingface/trl#6089).
    trained = float(counts.trained * (4 if lora and launch.zero_stage < 3 else size))
    weights = (counts.parameters - counts.trained) * size + trained
    if launch.kind == "DEEPSPEED":
        return {"weights": weights, "gradients": trained, "optimizer": float(_ADAM_COPIES * counts.trained)}
    # The buckets of DistributedDataParallel are a copy of the gradients.
    gradients = 2 * trained if launch.kind == "MULTI_GPU" else trained
    return {"weights": weights, "gradients": gradients, "optimizer": 2 * trained}


def _activations(config: TrainingConfig, launch: Launch, counts: Counts) -> float:
    """Return the bytes that the backward pass of one micro-step needs, with completions or pairs of maximum length."""
    kept = partial(_kept, config, launch, counts)
    if not isinstance(config, ScpoConfig):
        rows, longest = config.grpo.per_device_train_batch_size, config.grpo.max_completion_length
        prompts = max(1, rows // config.grpo.num_generations)  # once for each group
        # Each completion has a copy of the keys and values of its prompt.
        tokens, copied = prompts * PROMPT_TOKENS + rows * longest, rows * (PROMPT_TOKENS + longest)
        return kept(tokens, copied=copied, checkpointing=config.grpo.gradient_checkpointing)
    length = config.scpo.max_length or min(PROMPT_TOKENS, counts.positions)
    eager = config.model.attn_implementation == "eager"
    needed = []
    for section in filter(None, (config.scpo, config.global_rm)):  # training the global RM may need more
        share = math.ceil(section.batch_size / launch.processes)
        rows = 2 * min(share, section.per_device_train_batch_size)
        scores = _SCORES * rows * counts.heads * length * max(length, _SCORED) * eager
        needed.append(kept(rows * length, scores=scores, checkpointing=section.gradient_checkpointing))
    return max(needed)


def _kept(
    config: TrainingConfig,
    launch: Launch,
    counts: Counts,
    tokens: int,
    *,
    checkpointing: bool,
    copied: int = 0,
    scores: int = 0,
) -> float:
    """Return the bytes that the backward pass of `tokens` tokens needs.

    Keys and values of `copied` tokens are kept besides theirs, and `scores` attention scores in each layer.
    """
    size, lora = _BYTES[config.model.dtype], config.lora is not None
    autocast = size < 4 and launch.kind != "DEEPSPEED"
    # Autocast from float32 weights keeps copies of them and a float32 residual stream; under FSDP both are cast before.
    cast = autocast and not lora and launch.kind != "FSDP"
    copies, residual = size * counts.parameters * cast, 4 if cast else size
    kept, gradients = _layer_bytes(counts, size, lora=lora, autocast=autocast, cast=cast)
    keys = 2 * size * copied * (counts.layer.keys if counts.layer else 0)
    layer, work = tokens * kept + keys + (4 if autocast else size) * scores, tokens * gradients
    if checkpointing:  # the copies end with the forward pass
        return counts.layers * tokens * counts.hidden_size * residual + max(layer + work, copies)
    return counts.layers * layer + work + copies


def _layer_bytes(counts: Counts, size: int, *, lora: bool, autocast: bool, cast: bool) -> tuple[float, float]:
    """Return the bytes that a layer keeps for each token, and those of its gradients.

    With `autocast` the weights may be in half precision already; with `cast` they are in float32.
    """
    width, layer = counts.hidden_size, counts.layer
    least = size * _ACTIVATIONS * width
    if layer is None:
        return least, 0
    # Queries, the attention's output and its copy; keys and values; gate, projection, its activation and their product,
    # or a projection and its activation; inputs of projections, which autocast or an adapter under it copies for each.
    numbers = 3 * layer.queries + 2 * layer.keys + (4 if layer.gated else 2) * layer.intermediate
    numbers += (5 if autocast else 2) * width
    norms = 2 * width * (4 if layer.gated or autocast else size)
    if layer.gated and not lora:  # trained norms also keep what their weights multiply
        norms += 2 * width * (4 if cast else size)
    if layer.normalizes_heads:
        norms += (layer.queries + layer.keys) * (4 + size * (not lora))
    gradients = 2 * layer.intermediate * (4 if lora and autocast else size) + 8 * width
    return max(least, size * numbers + norms), gradients


def engine(config: TrainingConfig, counts: Counts) -> dict[str, float]:
    """Return the bytes that a colocated vLLM needs on each GPU to start, by part; empty if there is none."""
    if isinstance(config, ScpoConfig) or config.rollout.backend != "vllm_colocate":
        return {}
    size, ranks = element_size(config), config.grpo.vllm_tensor_parallel_size
    base = counts.parameters - (counts.trained if config.lora else 0)
    return {
        "vLLM's weights": size * base / ranks,
        "vLLM's cache": size * counts.cached * _engine_tokens(config, counts) / ranks,
        "vLLM's work": _ENGINE_WORK,
    }


def element_size(config: GrpoConfig) -> int:
    return _BYTES[config.rollout.dtype or config.model.dtype]


def _engine_tokens(config: GrpoConfig, counts: Counts) -> int:
    """Return the maximum sequence length of a colocated vLLM."""
    return config.rollout.max_model_length or min(counts.positions, PROMPT_TOKENS + config.grpo.max_completion_length)


def gpu_needed(config: TrainingConfig, parts: Mapping[str, float], engines: Mapping[str, float]) -> float:
    """Return the bytes that a GPU must have; if vLLM's share is set, its parts fit inside and the others outside."""
    training, sampling = sum(parts.values()), sum(engines.values())
    share = config.rollout.gpu_memory_utilization if engines and not isinstance(config, ScpoConfig) else None
    if share is None:
        return (training + sampling) / USABLE
    return max(training / (USABLE - share) if share < USABLE else float("inf"), sampling / share)


def engine_share(config: GrpoConfig, counts: Counts, parts: Mapping[str, float], gpu: float) -> float | None:
    """Return a suitable share of a GPU of `gpu` bytes for a colocated vLLM; `None` if training leaves too little.

    It is at least what vLLM needs to start, and at most what all rollouts of an optimizer step need.
    """
    needed = sum(engine(config, counts).values())
    rows = config.grpo.per_device_train_batch_size * config.grpo.gradient_accumulation_steps
    cache = rows * _engine_tokens(config, counts) * counts.cached * element_size(config)
    least, most = math.ceil(100 * needed / gpu), math.ceil(100 * (USABLE - sum(parts.values()) / gpu))
    wanted = math.ceil(100 * (needed + cache) / gpu)
    return None if least > most else min(max(least, wanted), most) / 100


# --- Fit a run: the length of a colocated vLLM's sequences, its share of memory, and what cannot fit ---

Config = TypeVar("Config", RunConfig, PolicyConfig)

TENSOR_PARALLEL = "grpo.vllm_tensor_parallel_size"
"""The number of ranks among which the weights of a colocated vLLM are divided."""

_MARGIN = 64  # tokens: other orders and protocols of an item have slightly longer prompts
_STEP = 256  # lengths are multiples of this


def fitted(config: Config, longest: Callable[[], int], recipe: str, overrides: Sequence[str]) -> Config:
    """Fill in a colocated vLLM's length (`longest` may load a tokenizer) and share of memory where they are null."""
    if config.rollout.backend != "vllm_colocate":
        return config
    if config.rollout.max_model_length is None and config.model.path is not None:
        config = _with_rollout(config, {"max_model_length": longest()})
    if (gpu := gpu_bytes()) is None:
        return config
    if faults := memory_faults(config, recipe, overrides):
        raise PreflightError(f"{faults[0]} (sequences of {config.rollout.max_model_length} tokens)")
    if config.rollout.gpu_memory_utilization is None:
        counts = count(config)
        share = engine_share(config, counts, estimate(config, current_launch(), counts), gpu)
        config = _with_rollout(config, {"gpu_memory_utilization": share})
    return config


def _with_rollout(config: Config, values: Mapping[str, float | None]) -> Config:
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=values)})


def longest_sequence(config: RunConfig, data: TrainingData) -> int:
    """Return the tokens of a run's longest prompt and a whole completion, at most the model's limit."""
    from think_as_locals.training.grpo import count_prompt_tokens

    lengths = partial(count_prompt_tokens, config, str(config.model.path), data)
    limits = [config.data.sources[name].max_prompt_tokens for name in data.sources]
    trained = [n for n, limit in zip(lengths(data.train), limits, strict=True) if limit is None or n <= limit]
    evaluated = lengths([item for each in data.sets.values() for item in each.items])
    return _rounded(config, max(trained + evaluated) + _MARGIN + config.grpo.max_completion_length)


def longest_answer(config: PolicyConfig, prompts: Iterable[str]) -> int:
    """As `longest_sequence`, for the prompts of a policy's training and tasks."""
    from think_as_locals.training.grpo import load_chat

    chats = [[{"role": "user", "content": prompt}] for prompt in dict.fromkeys(prompts)]
    lengths = [config.grpo.max_completion_length, *(task.max_completion_length for task in config.tasks.values())]
    return _rounded(config, max(map(len, load_chat(config, str(config.model.path)).encode(chats))) + max(lengths))


def _rounded(config: GrpoConfig, tokens: int) -> int:
    return min(-(-tokens // _STEP) * _STEP, count(config).positions)


def memory_faults(config: TrainingConfig, recipe: str, overrides: Sequence[str]) -> list[str]:
    """Return a fault, with a command that fits, if a GPU of this machine is too small for a run as launched."""
    if (gpu := gpu_bytes()) is None:
        return []
    try:
        counts = count(config)
    except ConfigError:  # reported by the check of the model
        return []
    launch = current_launch()
    needed = needed_bytes(config, launch, counts)
    if needed <= gpu:
        return []
    got = f"memory: each of {launch.processes} processes needs about {needed / GB:.0f} GB, a GPU has {gpu / GB:.0f}"
    line = fitting_command(config, recipe, overrides, gpu, max(num_gpus(), launch.processes // launch.machines))
    return [f"{got}; this fits: {line}" if line else f"{got}; no file of launch/ fits, even with lora=rank16"]


def needed_bytes(config: TrainingConfig, launch: Launch, counts: Counts) -> float:
    """Return the bytes of memory that each GPU must have."""
    return gpu_needed(config, estimate(config, launch, counts), engine(config, counts))


def fitting_command(config: TrainingConfig, recipe: str, overrides: Sequence[str], gpu: float, gpus: int) -> str | None:
    """Return a command that fits on nodes with `gpus` GPUs of `gpu` bytes, or `None`.

    It tries more sharding first, then a vLLM that is divided among GPUs, then an adapter.
    """
    plain = [text for text in overrides if not text.startswith("rollout.gpu_memory_utilization=")]
    files = ("gpu8_zero2", "gpu8_zero3", "nodes_zero3") if gpus > 1 else (None,)
    colocated = not isinstance(config, ScpoConfig) and config.rollout.backend == "vllm_colocate"
    divided = [[f"{TENSOR_PARALLEL}={ranks}"] for ranks in (2, 4, 8) if colocated and gpus % ranks == 0]
    for adapter in [[], ["lora=rank16"]][: 1 if config.lora else 2]:
        counts: Counts | None = None
        for parallel in [[], *divided]:
            tried = load_config(recipe, words := [*plain, *parallel, *adapter])
            if not isinstance(tried, TrainingConfig):
                return None
            counts = counts or count(tried)  # takes a second for a large model
            for name in files:
                file = read_launch(name)
                launch = replace(file, processes=gpus * file.machines)
                if needed_bytes(tried, launch, counts) <= gpu:
                    number = [] if launch.processes == file.processes else ["--num_processes", str(launch.processes)]
                    words = ["--config_file", f"launch/{file.name}.yaml", *number, recipe, *words]
                    return shlex.join(["accelerate", "launch", *words])
    return None

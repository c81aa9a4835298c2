"""Fields of TRL's configurations outside our schema: their names and values, and the keys that control some of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.util import find_spec
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from think_as_locals.config.compose import nearest
from think_as_locals.config.schema import GrpoSection, SftSection, TrlSection
from think_as_locals.config.scpo_schema import GlobalRMSection, ScpoSection
from think_as_locals.types import shown

_SET_ELSEWHERE = {  # fields of TRL that other keys decide
    "output_dir": "run.dir and run.name",
    "run_name": "run.name",
    **dict.fromkeys(("seed", "data_seed"), "seed"),
    **dict.fromkeys(("bf16", "fp16"), "model.dtype"),
    "ddp_timeout": "grpo.ddp_timeout",
    "model_init_kwargs": "model",
    "chat_template_kwargs": "model.chat_template_kwargs",
    "reward_weights": "reward.weights",
    "hub_token": "HF_TOKEN in the environment (a run's config.yaml is shown to others)",
    "save_only_model": "grpo.save_steps (a run could not be continued from a model alone)",
    **dict.fromkeys(("save_strategy", "metric_for_best_model", "greater_is_better"), "save_steps of this section"),
    "save_on_each_node": "run.dir to a folder that all nodes share",
    "ignore_data_skip": "run.resume (a run would go on with other items)",
    "resume_from_checkpoint": "run.resume",
    "sync_ref_model": "grpo.beta (checkpoints do not hold a moving reference)",
    **dict.fromkeys(("use_cpu", "ddp_backend", "deepspeed", "fsdp"), "a --config_file of accelerate launch"),
    **dict.fromkeys(("do_eval", "eval_strategy", "eval_on_start", "eval_steps", "load_best_model_at_end"), "eval.*"),
    **dict.fromkeys(("use_vllm", "vllm_mode"), "rollout"),
    "vllm_gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "vllm_max_model_length": "rollout.max_model_length",
    **dict.fromkeys(("vllm_server_base_url", "vllm_server_host", "vllm_server_port"), "rollout.urls"),
    "vllm_server_timeout": "rollout.timeout_s",
    "vllm_group_port": "rollout.weights_dir (through it weights reach a server)",
}

_OF_REWARD_MODELS = {
    "ddp_timeout": "scpo.ddp_timeout",
    "disable_dropout": "mode.dropout",
    "max_length": "scpo.max_length",
    "num_train_epochs": "max_steps of this section",
    "save_only_model": "save_steps of this section (a run could not be continued from a model alone)",
    **dict.fromkeys(
        ("gradient_accumulation_steps", "auto_find_batch_size", "accelerator_config"),
        "batch_size of this section (the pairs of a step on all processes), and per_device_train_batch_size for memory",
    ),
    **dict.fromkeys(("seed", "data_seed"), "seed and scpo.seeds"),
    **dict.fromkeys(("chat_template_path", "eos_token", "pad_token"), "model (its texts are read as it was made for)"),
    **dict.fromkeys(
        ("dataloader_drop_last", "pad_to_multiple_of", "train_sampling_strategy"),
        "per_device_train_batch_size of this section (every batch is full, and padded to its longest row)",
    ),
    "report_to": "nothing (many trainings in one process have no tracker: metrics.jsonl and scpo.json have it all)",
}

_OF_COLD_STARTS = {
    "max_length": "data (no demonstration is cut)",
    **dict.fromkeys(
        ("dataset_kwargs", "dataset_text_field", "dataset_num_proc", "packing", "eval_packing"),
        "data (demonstrations come as tokens)",
    ),
    "remove_unused_columns": "data (demonstrations come as tokens)",
    **dict.fromkeys(("assistant_only_loss", "completion_only_loss"), "nothing (the completion alone is trained on)"),
    **dict.fromkeys(("chat_template_path", "eos_token", "pad_token"), "model (its texts are read as it was made for)"),
}

TRL_SECTIONS: dict[str, tuple[type[TrlSection], dict[str, str]]] = {
    "grpo": (GrpoSection, {"remove_unused_columns": "data.* (the rewards need its columns)"}),
    "sft": (SftSection, _OF_COLD_STARTS),
    "scpo": (ScpoSection, _OF_REWARD_MODELS),
    "global_rm": (GlobalRMSection, _OF_REWARD_MODELS),
}
"""Sections with fields of TRL, and the keys that decide some of these instead."""

_UNSUPPORTED = {  # fields of TRL that this package does not use
    **dict.fromkeys(
        ("push_to_hub", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision", "log_completions_hub_repo"),
        "TRL would upload its whole folder, for all to see; `tal push` sends what is on a list, when the run is done",
    ),
    "trust_remote_code": "code that comes with a model is not run",
    "enable_jit_checkpoint": "SIGTERM already saves and stops the run",
}

_CHOICES: dict[str, tuple[Any, ...]] = {  # values of fields that TRL types as `str`, and reads only when it trains
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "scale_rewards": ("group", "batch", "none"),
    "loss_type": ("nll", "dft"),  # of a cold start; that of GRPO is typed in our schema
    "include_num_input_tokens_seen": ("all", "non_padding", "no", True, False),
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch_rebalance"),
    "dataloader_multiprocessing_context": ("fork", "spawn", "forkserver", None),
    "vllm_model_impl": ("auto", "vllm", "transformers"),
}

_BOUNDS = {  # minimum and maximum of fields that TRL does not check, or only with the first rollouts
    **dict.fromkeys(("num_iterations", "steps_per_generation", "generation_batch_size"), (1, math.inf)),
    **dict.fromkeys(("torch_empty_cache_steps", "num_completions_to_print"), (1, math.inf)),
    **dict.fromkeys(("epsilon", "epsilon_high", "delta", "top_k", "weight_decay", "max_grad_norm"), (0, math.inf)),
    **dict.fromkeys(("neftune_noise_alpha", "router_aux_loss_coef", "dataloader_num_workers"), (0, math.inf)),
    **dict.fromkeys(("top_p", "min_p", "top_entropy_quantile", "label_smoothing_factor"), (0, 1)),
    **dict.fromkeys(("sapo_temperature_pos", "sapo_temperature_neg"), (1e-12, math.inf)),
    **dict.fromkeys(("adam_epsilon", "repetition_penalty"), (1e-12, math.inf)),
}


def trl_faults(section: str, values: Mapping[str, Any]) -> list[str]:
    """Return the faults of a section's fields that our schema does not type; imports TRL only if there are any."""
    ours, elsewhere = TRL_SECTIONS[section]
    given = values.get(section)
    extra = {key: given[key] for key in given if key not in ours.model_fields} if isinstance(given, Mapping) else {}
    if not extra or not find_spec("trl"):
        return []
    from trl import GRPOConfig, RewardConfig, SFTConfig

    known = {"grpo": GRPOConfig, "sft": SFTConfig}.get(section, RewardConfig)
    elsewhere = _SET_ELSEWHERE | elsewhere
    types = {field.name: field.type for field in dataclasses.fields(known)}
    faults = []
    for key, value in extra.items():
        if key in elsewhere:
            fault = f"set {elsewhere[key]} instead"
        elif key in _UNSUPPORTED:
            fault = f"drop it: {_UNSUPPORTED[key]}"
        elif key not in types:
            fault = f"no such field of TRL's {known.__name__}{nearest(key, [*ours.model_fields, *types])}"
        else:
            fault = _value_fault(key, value, types[key])
        if fault:
            faults.append(f"{section}.{key}: {fault}")
    return faults


def _value_fault(key: str, value: Any, kind: Any) -> str:
    """Return the fault of a field's value, or an empty text."""
    if infinite := [number for number in _numbers(value) if not math.isfinite(number)]:
        return f"got {infinite[0]}, expected a finite number"
    try:
        TypeAdapter[Any](kind).validate_python(value, strict=True)
    except ValidationError as error:
        return f"got {shown(value)}, expected {error.errors()[0]['msg'].removeprefix('Input should be ')}"
    if key in _CHOICES and value not in _CHOICES[key]:
        return f"got {shown(value)}, expected {' or '.join(map(str, _CHOICES[key]))}"
    named: list[str] = [name for part in get_args(kind) for name in _values(part)]
    if named and isinstance(value, str) and value not in named:
        return f"got {shown(value)}, expected one of {', '.join(named)}{nearest(value, named)}"
    least, most = _BOUNDS.get(key, (-math.inf, math.inf))
    if value is not None and key in _BOUNDS and not least <= value <= most:
        return f"got {shown(value)}, expected at least {least:g}{f' and at most {most:g}' if most < math.inf else ''}"
    return ""


def _values(kind: Any) -> list[str]:
    """Return the values of an enumeration; none for other types."""
    return [str(each.value) for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)

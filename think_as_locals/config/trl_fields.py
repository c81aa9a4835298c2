"""Check fields of TRL's configurations that our schema does not type against TRL's own dataclasses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from think_as_locals.config.compose import nearest
from think_as_locals.config.schema import GlobalRMSection, GrpoSection, ScpoSection, SftSection, TrlSection

SECTIONS: dict[str, type[TrlSection]] = {
    "grpo": GrpoSection,
    "sft": SftSection,
    "scpo": ScpoSection,
    "global_rm": GlobalRMSection,
}
"""The sections of a configuration that hold fields of TRL's."""

_SET_ELSEWHERE = {  # fields of TRL's that other keys determine
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
    "save_on_each_node": "run.dir to a folder that all nodes share",
    "ignore_data_skip": "run.resume (a run would go on with other items)",
    "resume_from_checkpoint": "run.resume",
    "sync_ref_model": "grpo.beta (a moving reference is in no checkpoint)",
    **dict.fromkeys(("use_cpu", "ddp_backend", "deepspeed", "fsdp"), "a --config_file of accelerate launch"),
    **dict.fromkeys(("do_eval", "eval_strategy", "eval_on_start", "eval_steps", "load_best_model_at_end"), "eval.*"),
    **dict.fromkeys(("use_vllm", "vllm_mode"), "rollout"),
    "vllm_gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "vllm_max_model_length": "rollout.max_model_length",
    **dict.fromkeys(("vllm_server_base_url", "vllm_server_host", "vllm_server_port"), "rollout.url"),
    "vllm_server_timeout": "rollout.timeout_s",
    "vllm_group_port": "rollout.weights_dir (through it weights reach a server)",
}

_REFUSED = {  # fields of TRL's that this package does not use
    **dict.fromkeys(
        ("push_to_hub", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision", "log_completions_hub_repo"),
        "TRL would upload its whole folder, for all to see; `tal push` sends what is on a list, when the run is done",
    ),
    "trust_remote_code": "code that comes with a model is not run",
    "enable_jit_checkpoint": "SIGTERM saves and stops as it is",
}

_OF_GRPO = {"remove_unused_columns": "data.* (the rewards need its columns)"}

_OF_COLD_STARTS = {
    "max_length": "data (no demonstration is cut)",
    "dataset_kwargs": "data (demonstrations come as tokens)",
}

_CHOICES = {  # of fields that TRL types as `str` and reads only with the first rollouts
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "scale_rewards": ("group", "batch", "none"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}

_LEAST = {**dict.fromkeys(("num_iterations", "steps_per_generation", "generation_batch_size"), 1), "epsilon": 0}

_OF_REWARD_MODELS = {
    "ddp_timeout": "scpo.ddp_timeout",
    "disable_dropout": "mode.dropout",
    "max_length": "scpo.max_length",
    "num_train_epochs": "max_steps of this section",
    "save_only_model": "save_steps of this section (a run could not be continued from a model alone)",
    **dict.fromkeys(("seed", "data_seed"), "seed and scpo.seeds"),
    **dict.fromkeys(("chat_template_path", "eos_token", "pad_token"), "model (its texts are read as it was made for)"),
    **dict.fromkeys(
        ("dataloader_drop_last", "pad_to_multiple_of", "train_sampling_strategy"),
        "per_device_train_batch_size of this section (every batch is full, and padded to its longest row)",
    ),
    "report_to": "nothing (many trainings in one process have no tracker: metrics.jsonl and scpo.json have it all)",
}


def trl_faults(section: str, values: Mapping[str, Any]) -> list[str]:
    """Return the faults of a section's fields that our schema does not type; imports TRL only if there are any."""
    ours = SECTIONS[section]
    given = values.get(section)
    extra = {key: given[key] for key in given if key not in ours.model_fields} if isinstance(given, Mapping) else {}
    if not extra or not find_spec("trl"):
        return []
    from trl import GRPOConfig, RewardConfig, SFTConfig

    known = {"grpo": GRPOConfig, "sft": SFTConfig}.get(section, RewardConfig)
    elsewhere = _SET_ELSEWHERE | {"grpo": _OF_GRPO, "sft": _OF_COLD_STARTS}.get(section, _OF_REWARD_MODELS)
    types = {field.name: field.type for field in dataclasses.fields(known)}
    faults = []
    for key, value in extra.items():
        fault: str | None
        if key in elsewhere:
            fault = f"set {elsewhere[key]} instead"
        elif key in _REFUSED:
            fault = f"drop it: {_REFUSED[key]}"
        elif key not in types:
            fault = f"no such field of TRL's {known.__name__}{nearest(key, [*ours.model_fields, *types])}"
        else:
            fault = _value_fault(key, value, types[key])
        if fault:
            faults.append(f"{section}.{key}: {fault}")
    return faults


def _value_fault(key: str, value: Any, kind: Any) -> str | None:
    """Return the fault of a field's value, or `None`."""
    if infinite := [number for number in _numbers(value) if not math.isfinite(number)]:
        return f"got {infinite[0]}, expected a finite number"
    try:
        TypeAdapter(cast(Any, kind)).validate_python(value, strict=True)
    except ValidationError as error:
        return f"got {value!r}, expected {error.errors()[0]['msg'].removeprefix('Input should be ')}"
    if key in _CHOICES and value not in _CHOICES[key]:
        return f"got {value!r}, expected {' or '.join(_CHOICES[key])}"
    if key in _LEAST and value is not None and value < _LEAST[key]:
        return f"got {value}, expected at least {_LEAST[key]}"
    return None


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)

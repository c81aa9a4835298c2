"""Fields of TRL's configurations that our schema does not type: whether TRL has them, and takes the values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from think_as_locals.composition import nearest
from think_as_locals.schema import GrpoSection, SftSection, TrlSection
from think_as_locals.scpo_schema import GlobalRMSection, ScpoSection

SECTIONS: dict[str, type[TrlSection]] = {
    "grpo": GrpoSection,
    "sft": SftSection,
    "scpo": ScpoSection,
    "global_rm": GlobalRMSection,
}
"""Sections of a configuration that hold fields of TRL's."""

_SET_ELSEWHERE = {  # fields of TRL's that other keys decide
    "output_dir": "run.dir and run.name",
    "run_name": "run.name",
    "seed": "seed",
    **dict.fromkeys(("bf16", "fp16"), "model.dtype"),
    "ddp_timeout": "grpo.ddp_timeout",
    "model_init_kwargs": "model",
    "chat_template_kwargs": "model.chat_template_kwargs",
    "use_vllm": "rollout",
    "reward_weights": "reward.weights",
    "hub_token": "HF_TOKEN in the environment (a run's config.yaml is shown to others)",
    **dict.fromkeys(
        ("push_to_hub", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision"),
        "nothing here and use `tal push` when the run has ended (TRL would upload its whole folder, for all to see)",
    ),
    "save_only_model": "grpo.save_steps (a run could not be continued from a model alone)",
    "ignore_data_skip": "run.resume (a run would go on with other items)",
    "sync_ref_model": "grpo.beta (a moving reference is in no checkpoint)",
    **dict.fromkeys(("use_cpu", "ddp_backend", "deepspeed", "fsdp"), "a --config_file of accelerate launch"),
}

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
    """Check fields that this schema does not type against TRL's own dataclass (imported only where there are any)."""
    ours = SECTIONS[section]
    given = values.get(section)
    extra = {key: given[key] for key in given if key not in ours.model_fields} if isinstance(given, Mapping) else {}
    if not extra or not find_spec("trl"):
        return []
    from trl import GRPOConfig, RewardConfig, SFTConfig

    known = {"grpo": GRPOConfig, "sft": SFTConfig}.get(section, RewardConfig)
    elsewhere = _SET_ELSEWHERE | (_OF_REWARD_MODELS if known is RewardConfig else {})
    fields = {field.name: field for field in dataclasses.fields(known)}
    faults = []
    for key, value in extra.items():
        if key in elsewhere:
            faults.append(f"{section}.{key}: set {elsewhere[key]} instead")
            continue
        if key not in fields:
            near = nearest(key, [*ours.model_fields, *fields])
            faults.append(f"{section}.{key}: no such field of TRL's {known.__name__}{near}")
            continue
        if infinite := [number for number in _numbers(value) if not math.isfinite(number)]:
            faults.append(f"{section}.{key}: got {infinite[0]}, expected a finite number")
            continue
        try:
            TypeAdapter(cast(Any, fields[key].type)).validate_python(value, strict=True)
        except ValidationError as error:
            faults.append(
                f"{section}.{key}: got {value!r}, expected {error.errors()[0]['msg'].removeprefix('Input should be ')}"
            )
    return faults


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)

"""A recipe and its overrides -> a validated configuration, or one message that lists every fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from think_as_locals.config.compose import ASSETS, compose_recipe, nearest
from think_as_locals.config.model_schema import DemonstrationConfig, EditConfig, EvaluationConfig, SampleConfig
from think_as_locals.config.rules import rule_faults
from think_as_locals.config.schema import (
    GlobalRMSection,
    GrpoSection,
    ItemsConfig,
    RunConfig,
    ScpoConfig,
    ScpoSection,
    SftSection,
    TrlSection,
)
from think_as_locals.types import ConfigError, cut, first_of, shown

_MAX_FAULTS = 40  # faults in a message

_NULL_SECTIONS = {  # sections that may be null, and what turns them on
    "sft": "this recipe has no cold start: choose trainer=demonstrated_grpo or cold_start_grpo, or drop sft.*",
    "lora": "this run trains all weights: choose lora=rank16, or drop lora.*",
    "global_rm": "this recipe loads its global RM: choose global_rm=pooled, or drop global_rm.*",
    "model.scratch": "the model is loaded: choose model=quickstart, or drop model.scratch.*",
}

Config = RunConfig | EvaluationConfig | ScpoConfig | DemonstrationConfig | SampleConfig | EditConfig
"""What a recipe becomes, as `_KINDS` says."""


class _Kind(NamedTuple):
    """A kind of recipe."""

    section: str  # a recipe with this section is of this kind ...
    schema: type[Config]
    action: str
    absent_section: str = ""  # ... unless it also has this one


_KINDS = (
    _Kind("grpo", RunConfig, "trains a judge"),
    _Kind("rms", EvaluationConfig, "evaluates reward models"),
    _Kind("scpo", ScpoConfig, "steers a reward model"),
    _Kind("teacher", DemonstrationConfig, "asks a teacher for demonstrations"),
    _Kind("sample", SampleConfig, "draws candidates of a policy", absent_section="rms"),
    _Kind("editor", EditConfig, "has a model edit items"),
)

_Schema = TypeVar("_Schema", bound=BaseModel)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Compose a recipe with conf/ and overrides, and validate the result.

    Args:
        path: A recipe: a YAML file whose `defaults` begin with `/config`.
        overrides: `key=value`, or `group=option` for one of conf/'s groups.

    Raises:
        ConfigError: one message with every fault found, each with what was got, what was expected and the nearest
            known name.

    Example:
        >>> load_recipe("recipes/quickstart.yaml", ["seed=3"]).seed
        3
    """
    config = load_config(path, overrides)
    if not isinstance(config, RunConfig):
        action = next(kind.action for kind in _KINDS if isinstance(config, kind.schema))
        raise ConfigError(f"{config.recipe} {action} and trains no judge: use `tal run`")
    return config


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Compose and validate a recipe of any kind, as `load_recipe` does."""
    return validate(compose_recipe(path, overrides))


def load_data_config(overrides: Sequence[str]) -> ItemsConfig:
    """Compose and validate conf/items.yaml: the data section alone, for `tal data`."""
    return validate_as(ItemsConfig, compose_recipe(ASSETS / "conf" / "items.yaml", overrides))


def validate(values: Mapping[str, Any]) -> Config:
    """Validate a composed configuration of any kind."""
    kinds = [kind for kind in _KINDS if kind.section in values and kind.absent_section not in values]
    if len(kinds) > 1:
        owners = ", ".join(f"{kind.section}.* belongs to a recipe that {kind.action}" for kind in kinds)
        raise ConfigError(
            f"{values['recipe']}: {owners}; a run does one of these: drop the keys that are not this recipe's"
        )
    kind, data = kinds[0] if kinds else _KINDS[0], values.get("data")
    mixed = isinstance(data, Mapping) and data.get("source") == "mix"
    if mixed and kind.schema not in (RunConfig, DemonstrationConfig):
        purpose = "data=mix is for training a judge or demonstrating"
        raise ConfigError(f"{values['recipe']}: {purpose}; this recipe {kind.action}: choose one source")
    return validate_as(kind.schema, values)


def validate_as(schema: type[_Schema], values: Mapping[str, Any]) -> _Schema:
    """Validate values by a schema and by the rules that it cannot express."""
    faults = [fault for name in _TRL_SECTIONS if name in schema.model_fields for fault in trl_faults(name, values)]
    try:
        config = schema.model_validate(values)
        faults += rule_faults(config)
    except ValidationError as error:
        faults += [_describe(dict(fault), schema, values) for fault in error.errors()]
    if faults:
        listed = first_of(dict.fromkeys(faults), _MAX_FAULTS, between="\n  - ")
        raise ConfigError(f"the configuration is not valid:\n  - {listed}")
    return config


def _describe(fault: Mapping[str, Any], schema: type[BaseModel], values: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors on one line, with the key and the nearest known one."""
    keys, siblings, is_tagged = list[str](), set[str](), False
    node: Any = values
    for part in fault["loc"]:
        inner = node if isinstance(node, Mapping) else {}
        if part == "[key]":  # of the name before it
            continue
        if not is_tagged and part in (inner.get("source"), inner.get("kind")):  # the kind of a section, no key
            is_tagged = True
            continue
        keys.append(cut(str(part), 100))
        node, siblings, is_tagged = inner.get(part), {*inner}, False
    place, parent = ".".join(keys), ".".join(keys[:-1])
    got, kind, message = fault["input"], fault["type"], fault["msg"]
    if kind == "extra_forbidden":
        section = max(_models(schema), key=lambda model: len(siblings & model.model_fields.keys()))
        known = [".".join([*keys[:-1], name]) for name in section.model_fields]
        return f"{place}: no such key{nearest(place, known)}"
    if kind == "missing":
        return f"{parent}: {_NULL_SECTIONS[parent]}" if parent in _NULL_SECTIONS else f"{place}: missing"
    if keys[-1] in ("url", "key_variable") or isinstance(got, Mapping):  # which may hold a password
        return f"{place}: {message}"
    if isinstance(got, bool) and "str" in kind:
        return f"{place}: got the boolean {str(got).lower()}: YAML reads an unquoted NO, ON or YES as one; quote it"
    expected = message.removeprefix("Input should be ")
    return f"{place}: got {shown(got)}{', expected ' if expected != message else ': '}{expected}"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the classes of all sections in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation)
    for part in get_args(annotation):
        yield from _models(part)


# --- Fields of TRL's configurations outside our schema ---

_DECIDED = {  # fields of TRL that other keys decide, by these keys
    "run": (
        *("output_dir", "run_name", "resume_from_checkpoint", "ignore_data_skip", "save_on_each_node"),
        "enable_jit_checkpoint",  # SIGTERM already saves and stops the run
    ),
    "seed": ("seed", "data_seed"),
    "grpo.ddp_timeout or scpo.ddp_timeout": ("ddp_timeout",),
    "model": (
        *("bf16", "fp16", "model_init_kwargs", "chat_template_kwargs", "trust_remote_code"),
        *("chat_template_path", "eos_token", "pad_token"),
    ),
    "data": (
        *("remove_unused_columns", "dataset_kwargs", "dataset_text_field", "dataset_num_proc", "packing"),
        *("eval_packing", "assistant_only_loss", "completion_only_loss", "max_length"),
    ),
    "reward.weights": ("reward_weights",),
    "rollout": (
        *("use_vllm", "vllm_mode", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_server_base_url"),
        *("vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_group_port"),
    ),
    "save_steps of this section": ("save_strategy", "save_only_model", "metric_for_best_model", "greater_is_better"),
    "grpo.beta (checkpoints hold no moving reference)": ("sync_ref_model",),
    "eval": ("do_eval", "eval_strategy", "eval_on_start", "eval_steps", "load_best_model_at_end"),
    "the launch file": ("use_cpu", "ddp_backend", "deepspeed", "fsdp"),
    "tal push, which sends what is on a list": (
        *("push_to_hub", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision", "hub_token"),
        "log_completions_hub_repo",
    ),
}
_DECIDED_FOR_REWARD_MODELS = {
    "mode.dropout": ("disable_dropout",),
    "max_steps of this section": ("num_train_epochs",),
    "scpo.max_length": ("max_length",),
    "batch_size and per_device_train_batch_size of this section": (
        *("gradient_accumulation_steps", "auto_find_batch_size", "accelerator_config"),
        *("dataloader_drop_last", "pad_to_multiple_of", "train_sampling_strategy"),
    ),
    "the run's folder (many trainings in one process have no tracker)": ("report_to",),
}
_FINITE = ConfigDict(allow_inf_nan=False)
_TRL_SECTIONS: dict[str, tuple[type[TrlSection], str]] = {
    "grpo": (GrpoSection, "GRPOConfig"),
    "sft": (SftSection, "SFTConfig"),
    "scpo": (ScpoSection, "RewardConfig"),
    "global_rm": (GlobalRMSection, "RewardConfig"),
}


def trl_faults(section: str, values: Mapping[str, Any]) -> list[str]:
    """Return the faults of a section's fields that our schema does not type; imports TRL only if there are any.

    Their types are those of TRL's dataclass, which also checks the values, before a run has a folder.
    """
    schema, name = _TRL_SECTIONS[section]
    given = values.get(section)
    extra = {key: given[key] for key in given if key not in schema.model_fields} if isinstance(given, Mapping) else {}
    if not extra or not find_spec("trl"):
        return []
    import trl

    types = {field.name: field.type for field in dataclasses.fields(getattr(trl, name))}
    tables = [_DECIDED, _DECIDED_FOR_REWARD_MODELS] if name == "RewardConfig" else [_DECIDED]
    decided = {field: place for table in tables for place, fields in table.items() for field in fields}
    faults = []
    for key, value in extra.items():
        if key not in types:
            near = nearest(key, [*schema.model_fields, *types])
            faults.append(f"{section}.{key}: no such field of TRL's {name}{near}")
        elif key in decided:
            faults.append(f"{section}.{key}: decided by {decided[key]}: drop it")
        else:
            try:
                TypeAdapter[Any](cast(Any, types[key]), config=_FINITE).validate_python(value, strict=True)
            except ValidationError as error:
                expected = error.errors()[0]["msg"].removeprefix("Input should be ")
                faults.append(f"{section}.{key}: got {shown(value)}, expected {expected}")
    return faults

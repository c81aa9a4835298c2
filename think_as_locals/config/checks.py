"""A recipe and its overrides -> a validated configuration, or one message that lists every fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from think_as_locals.config.compose import ASSETS, compose_recipe, nearest
from think_as_locals.config.model_schema import DemonstrationConfig, EditConfig, EvaluationConfig
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.schema import GrpoSection, ItemsConfig, SftSection, TrlSection
from think_as_locals.config.scpo_schema import GlobalRMSection, ScpoConfig, ScpoSection
from think_as_locals.types import ConfigError, shown

Config = RunConfig | EvaluationConfig | ScpoConfig | DemonstrationConfig | EditConfig
"""What a recipe becomes, as `_KINDS` says."""


class _Kind(NamedTuple):
    """A kind of recipe."""

    section: str  # a recipe with this section is of this kind
    schema: type[Config]
    action: str


_KINDS = (
    _Kind("grpo", RunConfig, "trains a judge"),
    _Kind("rms", EvaluationConfig, "evaluates reward models"),
    _Kind("scpo", ScpoConfig, "steers a reward model"),
    _Kind("teacher", DemonstrationConfig, "asks a teacher for demonstrations"),
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
    kinds = [kind for kind in _KINDS if kind.section in values]
    if len(kinds) > 1:
        owners = ", ".join(f"{kind.section}.* belongs to a recipe that {kind.action}" for kind in kinds)
        raise ConfigError(
            f"{values['recipe']}: {owners}; a run does one of these: drop the keys that are not this recipe's"
        )
    return validate_as((kinds or _KINDS)[0].schema, values)


def validate_as(schema: type[_Schema], values: Mapping[str, Any]) -> _Schema:
    """Validate values by a schema."""
    faults = [fault for name in _TRL_SECTIONS if name in schema.model_fields for fault in trl_faults(name, values)]
    try:
        config = schema.model_validate(values)
    except ValidationError as error:
        faults += [line for fault in error.errors() for line in _describe(dict(fault), values).split("\n")]
    if faults:
        raise ConfigError("\n  - ".join(["the configuration is not valid:", *dict.fromkeys(faults)]))
    return config


def _describe(fault: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors on one line, with the key and the nearest known one; a section's on several."""
    keys, siblings, is_tagged, of_kind = list[str](), set[str](), False, ""
    node: Any = values
    for part in fault["loc"]:
        inner = node if isinstance(node, Mapping) else {}
        if part == "[key]":  # of the name before it
            continue
        tag = next((name for name in ("source", "kind") if inner.get(name) == part), None)
        if tag and not is_tagged:  # the kind of a section, no key
            is_tagged, of_kind = True, f" with {'.'.join([*keys, tag])}={part}"
            continue
        keys.append(str(part))
        node, siblings, is_tagged = inner.get(part), set(map(str, inner)), False
    place, parent = ".".join(keys), ".".join(keys[:-1])
    got, kind, message = fault["input"], fault["type"], fault["msg"]
    if kind == "value_error":  # of our own: of a section those of its keys
        found = str(fault["ctx"]["error"]).split("\n")
        return "\n".join(
            f"{place}.{line}".lstrip(".") if isinstance(got, Mapping) else f"{place}: {line}" for line in found
        )
    if kind == "extra_forbidden":
        known = [".".join([*keys[:-1], name]) for name in siblings - {keys[-1]}]  # conf/ sets them all
        return f"{place}: no such key{of_kind}{nearest(place, known)}"
    if kind == "missing":
        whole = f"{parent}: not all of its keys are set: choose an option of conf/ that sets them, or drop {parent}.*"
        return whole if parent else f"{place}: missing"
    if keys[-1] in ("url", "key_variable") or isinstance(got, Mapping):  # which may hold a password
        return f"{place}: {message}"
    if isinstance(got, bool) and "str" in kind:
        return f"{place}: got the boolean {str(got).lower()}: YAML reads an unquoted NO, ON or YES as one; quote it"
    expected = message.removeprefix("Input should be ")
    return f"{place}: got {shown(got)}{', expected ' if expected != message else ': '}{expected}"


# --- Fields of TRL's configurations outside our schema ---

_OPTIMISATION = (
    *("lr_scheduler_kwargs", "optim", "optim_args", "optim_target_modules", "weight_decay", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "max_grad_norm", "gradient_checkpointing_kwargs", "use_liger_kernel", "torch_empty_cache_steps"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode", "full_determinism"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor"),
    *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "logging_first_step", "log_level"),
)
_GRPO = (
    *("steps_per_generation", "generation_batch_size", "num_iterations", "shuffle_dataset"),
    *("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs", "disable_dropout"),
    *("epsilon", "epsilon_high", "delta", "sapo_temperature_neg", "sapo_temperature_pos", "importance_sampling_level"),
    *("vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg", "scale_rewards", "use_bias_correction_kl"),
    *("multi_objective_aggregation", "mask_truncated_completions", "off_policy_mask_threshold", "top_entropy_quantile"),
    *("entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta"),
    *("entropy_target", "vllm_enable_sleep_mode", "vllm_importance_sampling_correction", "ds3_gather_for_generation"),
    *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min", "log_completions"),
    *("log_unique_prompts", "router_aux_loss_coef"),
)
_SFT = ("loss_type", "activation_offloading", "neftune_noise_alpha", "router_aux_loss_coef")
_REWARD = ("center_rewards_coefficient", "activation_offloading")
_FINITE = ConfigDict(allow_inf_nan=False)
_TRL_SECTIONS: dict[str, tuple[type[TrlSection], str, tuple[str, ...]]] = {
    "grpo": (GrpoSection, "GRPOConfig", _OPTIMISATION + _GRPO),
    "sft": (SftSection, "SFTConfig", _OPTIMISATION + _SFT),
    "scpo": (ScpoSection, "RewardConfig", _OPTIMISATION + _REWARD),
    "global_rm": (GlobalRMSection, "RewardConfig", _OPTIMISATION + _REWARD),
}
"""The fields of TRL's that a recipe may set beside those of our schema: none that sends anything anywhere."""


def trl_faults(section: str, values: Mapping[str, Any]) -> list[str]:
    """Return the faults of a section's fields that our schema does not type; imports TRL only if there are any.

    Their types are those of TRL's dataclass, which also checks the values, before a run has a folder.
    """
    schema, name, allowed = _TRL_SECTIONS[section]
    given = values.get(section)
    extra = {key: given[key] for key in given if key not in schema.model_fields} if isinstance(given, Mapping) else {}
    if not extra or not find_spec("trl"):
        return []
    import trl

    types = {field.name: field.type for field in dataclasses.fields(getattr(trl, name))}
    faults = []
    for key, value in extra.items():
        if key not in allowed:
            near = nearest(key, [*schema.model_fields, *allowed])
            faults.append(f"{section}.{key}: none of the fields of TRL's {name} that a recipe may set{near}")
            continue
        try:
            TypeAdapter[Any](cast(Any, types[key]), config=_FINITE).validate_python(value, strict=True)
        except ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input should be ")
            faults.append(f"{section}.{key}: got {shown(value)}, expected {expected}")
    return faults

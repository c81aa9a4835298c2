"""A recipe and its overrides -> a validated configuration, or one message that lists every fault."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from think_as_locals.config.compose import ASSETS, compose_recipe, nearest
from think_as_locals.config.model_schema import DemonstrationConfig, EditConfig, EvaluationConfig, SampleConfig
from think_as_locals.config.rules import rule_faults
from think_as_locals.config.schema import (
    KEY_VENDORS,
    DataSection,
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
    "sft": (
        "this recipe has no cold start (sft is null): choose trainer=demonstrated_grpo (trainer=cold_start_grpo for a "
        "model made from scratch), or drop sft.*"
    ),
    "lora": "this run trains all weights (lora is null): choose lora=rank16, or drop lora.*",
    "global_rm": "this recipe loads its global RM (global_rm is null): choose global_rm=pooled, or drop global_rm.*",
    "model.scratch": "null here (the model is loaded): choose model=quickstart, or drop model.scratch.*",
}

_PATTERNS = {  # descriptions of patterns
    "name": "letters, digits, '.', '_' and '-' that do not leave the run directory",
    "own_name": "lower-case letters, digits and '_'",
    "key_variable": (
        f"null, VENDOR_API_KEY (VENDOR is {', '.join(KEY_VENDORS)}) or a name that begins with TAL_, as a recipe sends "
        "no other secret to a server; TAL_KEY=$NAME in the shell passes one on"
    ),
    "own": "path/to/file.py:function or package.module:function",
}

_NAMED_SECTIONS = {  # sections that hold others by name
    "data.mix": "sources by name, each added by data.mix.NAME=SOURCE",
    "rms": "reward models by name, each added by rms.NAME=KIND: judge, server, classifier, implicit, constant",
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
    faults = [fault for name in TRL_SECTIONS if name in schema.model_fields for fault in trl_faults(name, values)]
    try:
        config = schema.model_validate(values)
        faults += rule_faults(config)
    except ValidationError as error:
        found = error.errors()
        for place in [fault["loc"][:-1] for fault in found if (fault["loc"][-1], fault["input"]) == ("source", "mix")]:
            name = ".".join(_locate(place, schema)[0])
            faults.append(f"{name}=mix is for training a judge or demonstrating: choose one source")
            found = [fault for fault in found if fault["loc"][: len(place)] != place]  # keys that a mix lacks
        faults += [_describe(dict(fault), schema) for fault in found]
    if faults:
        listed = first_of(dict.fromkeys(faults), _MAX_FAULTS, between="\n  - ")
        raise ConfigError(f"the configuration is not valid:\n  - {listed}")
    return config


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the classes of sections in a key's type, also in unions and as values of mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _locate(loc: Sequence[int | str], schema: type[BaseModel]) -> tuple[list[str], list[str]]:
    """Return the path of keys to a pydantic error, without the tags of unions, and the valid names for its last key."""
    place, known, models, is_named = list[str](), list[str](), [schema], False
    for part in loc:
        if len(models) > 1 and not is_named and part != "[key]":  # several kinds of sections: the tag of one
            models = [m for m in models if any(part in get_args(f.annotation) for f in m.model_fields.values())]
            continue
        if not is_named:
            known = [".".join([*place, name]) for model in models for name in model.model_fields]
            field = models[0].model_fields.get(str(part)) if models else None
            models = _models(field.annotation) if field else []
        is_named = not is_named and field is not None and get_origin(field.annotation) is dict
        place.append(cut(str(part), 100))
    return place, known


def _describe(fault: Mapping[str, Any], schema: type[BaseModel]) -> str:
    """Return one pydantic error as a sentence."""
    loc, known = _locate(fault["loc"], schema)
    got, kind, context = fault.get("input"), fault["type"], fault.get("ctx", {})
    place, parent = ".".join(loc), ".".join(loc[:-1])
    if kind == "extra_forbidden":
        if tuple(fault["loc"][:2]) == ("data", "mix") and len(loc) == 2 and loc[1] in DataSection.model_fields:
            remedy = f"set data.mix.NAME.{loc[1]}, and drop this one (~{place})"
            return f"{place}: each source of a mix has its own: {remedy}"
        return f"{place}: no such key{nearest(place, known)}"
    if place in _NAMED_SECTIONS or (parent == "rms" and kind != "missing"):
        return f"{place}: got {shown(got)}, expected {_NAMED_SECTIONS.get(place) or _NAMED_SECTIONS[parent]}"
    if kind == "union_tag_invalid":
        tags = context["expected_tags"].replace("'", "").split(", ")
        place = f"{place}.{context['discriminator'].strip(chr(39))}"
        return f"{place}: got {shown(context['tag'])}{nearest(context['tag'], tags)}; available: {', '.join(tags)}"
    if loc[-1] == "url":  # the value may hold a password
        return f"{place}: expected http[s]://HOST[:PORT][/PATH] without user or key, which the environment names"
    if kind in ("missing", "union_tag_not_found"):
        return _missing(loc)
    if isinstance(got, bool) and "str" in kind:
        return f"{place}: got the boolean {str(got).lower()}: YAML reads an unquoted NO, ON or YES as one; quote it"
    if loc[-1] == "[key]":
        form = _PATTERNS["name" if loc[0] in ("rms", "variants") else "own_name"]
        return f"{parent}: got the name {shown(got)}, expected {form}"
    form = _PATTERNS.get("own" if loc[:-1] == ["reward", "own"] else loc[-1], str(fault["msg"]))
    is_key = loc[-1] == "key_variable" and not str(got).isupper()
    value = "a name with lower-case letters, not shown as it may be a key itself" if is_key else shown(got)
    return f"{place}: got {value}, expected {form.removeprefix('Input should be ')}"


def _missing(loc: list[str]) -> str:
    """Return the message for a missing key."""
    if (section := ".".join(loc[:-1])) in _NULL_SECTIONS:
        return f"{section}: {_NULL_SECTIONS[section]}"
    if loc[:2] == ["eval", "sets"]:
        return f"{'.'.join(loc)}: missing; a set is added by {'.'.join(loc[:3])}=SOURCE"
    return f"{'.'.join(loc)}: missing; the recipe's defaults must begin with one of conf/'s roots"


# --- Fields of TRL's configurations outside our schema: names and values, and the keys that control some of them ---

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
    **dict.fromkeys(("vllm_server_base_url", "vllm_server_host", "vllm_server_port"), "rollout.url"),
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
    enums = (part for part in get_args(kind) if isinstance(part, type) and issubclass(part, Enum))
    named = [str(each.value) for enum in enums for each in enum]
    if named and isinstance(value, str) and value not in named:
        return f"got {shown(value)}, expected one of {', '.join(named)}{nearest(value, named)}"
    least, most = _BOUNDS.get(key, (-math.inf, math.inf))
    if value is not None and key in _BOUNDS and not least <= value <= most:
        return f"got {shown(value)}, expected at least {least:g}{f' and at most {most:g}' if most < math.inf else ''}"
    return ""


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(part)

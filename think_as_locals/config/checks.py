"""A recipe and its overrides -> a validated configuration, or one message that lists every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from think_as_locals.config.compose import ASSETS, compose_recipe, nearest
from think_as_locals.config.rules import (
    data_faults,
    demonstration_faults,
    edit_faults,
    evaluation_faults,
    policy_faults,
    scpo_faults,
    task_faults,
    training_faults,
)
from think_as_locals.config.schema import (
    DataSection,
    DemonstrationConfig,
    EditConfig,
    EvaluationConfig,
    ItemsConfig,
    PolicyConfig,
    RewardModelSection,
    RunConfig,
    SampleConfig,
)
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.config.trl_fields import TRL_SECTIONS, trl_faults
from think_as_locals.types import ConfigError, cut, shown

_MOST = 40  # faults that are listed

_OFF = {  # sections that may be null, and what turns them on
    "sft": (
        "this recipe has no cold start (sft is null): choose trainer=demonstrated_grpo (trainer=cold_start_grpo for a "
        "model made from scratch), or drop sft.*"
    ),
    "lora": "this run trains all weights (lora is null): choose lora=rank16, or drop lora.*",
    "global_rm": "this recipe loads its global RM (global_rm is null): choose global_rm=pooled, or drop global_rm.*",
    "model.scratch": "null here (the model is loaded): choose model=quickstart, or drop model.scratch.*",
}

_FORMS = {  # what keys with a pattern expect
    "name": "letters, digits, '.', '_' and '-' that do not leave the run directory",
    "own_name": "lower-case letters, digits and '_'",
    "own": "path/to/file.py:function or package.module:function",
}

_RM_KINDS: dict[str, type[BaseModel]] = {
    get_args(section.model_fields["kind"].annotation)[0]: section
    for section in get_args(get_args(RewardModelSection)[0])
}

_DOES = {
    "grpo": "trains a judge",
    "rm": "trains a policy",
    "rms": "evaluates reward models",
    "scpo": "steers a reward model",
    "teacher": "asks a teacher for demonstrations",
    "sample": "draws candidates of a policy",
    "editor": "has a model edit items",
}
"""The section that only one kind of recipe has, and what recipes of this kind do."""

_SHARED = {"sample": "rms", "grpo": "rm"}
"""Sections of two kinds of recipes: with the second section they are of its kind."""

Config = RunConfig | EvaluationConfig | ScpoConfig | DemonstrationConfig | SampleConfig | EditConfig | PolicyConfig
"""What a recipe becomes, as `_DOES` says."""

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
        does = next(does for section, does in _DOES.items() if hasattr(config, section))
        raise ConfigError(f"{config.recipe} {does} and trains no judge: use `tal run`")
    return config


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Compose and validate a recipe of any kind, as `load_recipe` does."""
    return validate(compose_recipe(path, overrides))


def load_items(overrides: Sequence[str]) -> ItemsConfig:
    """Compose and validate conf/items.yaml: the data section alone, for `tal data`."""
    values = compose_recipe(ASSETS / "conf" / "items.yaml", overrides)
    return validate_as(ItemsConfig, values, lambda config: data_faults(config.data, untrained="no tokenizer is here"))


def validate(values: Mapping[str, Any]) -> Config:
    """Validate a composed configuration of any kind."""
    kinds = [section for section in _DOES if section in values and _SHARED.get(section) not in values]
    if "rm" in kinds and "reward" in values:  # added to a recipe that trains a judge
        kinds = ["grpo", *kinds]
    if len(kinds) > 1:  # an override of another kind of recipe
        does = ", ".join(f"{kind}.* belongs to a recipe that {_DOES[kind]}" for kind in kinds)
        raise ConfigError(
            f"{values['recipe']}: {does}; a run does one of these: drop the keys that are not this recipe's"
        )
    data = values.get("data")
    if kinds and kinds[0] != "grpo" and isinstance(data, Mapping) and data.get("source") == "mix":
        does = _DOES[kinds[0]]
        raise ConfigError(
            f"{values['recipe']}: data=mix is for training a judge; this recipe {does}: choose one source"
        )
    if "rms" in values:
        return validate_as(EvaluationConfig, values, evaluation_faults)
    if "scpo" in values:
        return validate_as(ScpoConfig, values, scpo_faults)
    if "teacher" in values:
        return validate_as(DemonstrationConfig, values, demonstration_faults)
    if "rm" in values:
        return validate_as(PolicyConfig, values, policy_faults)
    if "editor" in values:
        return validate_as(EditConfig, values, edit_faults)
    if "sample" in values:
        return validate_as(SampleConfig, values, lambda config: task_faults("sample", config.sample))
    return validate_as(RunConfig, values, training_faults)


def validate_as(
    schema: type[_Schema], values: Mapping[str, Any], find_faults: Callable[[_Schema], list[str]] = lambda config: []
) -> _Schema:
    """Validate values by a schema, then by the rules that involve several keys (`find_faults`)."""
    faults = [fault for name in TRL_SECTIONS if name in schema.model_fields for fault in trl_faults(name, values)]
    try:
        config = schema.model_validate(values)
        faults += find_faults(config)
    except ValidationError as error:
        faults += [_describe(dict(fault), schema) for fault in error.errors()]
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in list(dict.fromkeys(faults))[:_MOST])
        listed += f"\n  - and {len(faults) - _MOST:,} more" if len(faults) > _MOST else ""
        raise ConfigError(f"the configuration is not valid:\n{listed}")
    return config


def _locate(fault: Mapping[str, Any], schema: type[BaseModel]) -> tuple[tuple[str, ...], list[str]]:
    """Return where a pydantic error is, and the dotted keys that are known there."""
    loc, known = tuple(cut(str(part), 100) for part in fault["loc"]), sorted(_keys(schema))
    if loc[0] == "rms" and loc[2:3] and loc[2] in _RM_KINDS:  # rms, its name, its kind, the key
        known = [f"rms.{loc[1]}.{key}" for key in _RM_KINDS[loc[2]].model_fields]
        loc = (*loc[:2], *loc[3:])
    if loc[:2] in (("sample", "policy"), ("sample", "scorer")):  # the two, a kind, the key
        loc = (*loc[:2], *(loc[3:] or ["kind"]))
    if loc[0] == "tasks" and loc[2:3] == ("scorer",):  # tasks, a name, scorer, a kind, the key
        loc = (*loc[:3], *(loc[4:] or ["kind"]))
    if loc[0] in ("teacher", "editor", "rm"):  # the section, its kind, the key
        loc = (loc[0], *(loc[2:] or ["kind"]))
    if loc[0] == "data" and schema is RunConfig:  # data, its source, the key
        loc = ("data", "source") if fault["type"] == "union_tag_invalid" else ("data", *loc[2:])
    if loc[:2] in (("data", "mix"), ("eval", "sets")) and len(loc) > 2:  # the two, a name, the key
        known = [key.replace(".".join(loc[:2]), ".".join(loc[:3])) for key in known]
    if loc[0] == "tasks" and len(loc) > 2:  # tasks, a name, the key
        known = [key.replace("tasks.", f"tasks.{loc[1]}.") for key in known]
    return loc, known


def _describe(fault: Mapping[str, Any], schema: type[BaseModel]) -> str:
    """Return one pydantic error as a sentence."""
    loc, known = _locate(fault, schema)
    got = fault.get("input")
    place = ".".join(loc)
    if fault["type"] == "extra_forbidden":
        mixed = tuple(fault["loc"][:2]) == ("data", "mix") and loc[-1] in DataSection.model_fields and len(loc) == 2
        if mixed:
            return (
                f"{place}: each source of a mix has its own: set data.mix.NAME.{loc[1]}, and drop this one (~{place})"
            )
        return f"{place}: no such key{nearest(place, known)}"
    by_name = place == "data.mix" or (loc[0] in ("rms", "tasks") and len(loc) < 3)
    if fault["type"] == "union_tag_invalid" or by_name:
        return _added(place, fault)
    if loc[-1] == "url" or loc[:-1] == ("rollout", "urls"):  # the value may hold a password
        return f"{place}: expected http[s]://HOST[:PORT][/PATH] without user or key, which the environment names"
    if fault["type"].startswith("union_tag"):
        known = fault["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"{place}: got {shown(got)}{nearest(got, known)}; available: {', '.join(known)}"
    if fault["type"] == "missing":
        return _missing(loc)
    if isinstance(got, bool) and "str" in fault["type"]:
        return f"{place}: got the boolean {str(got).lower()}: YAML reads an unquoted NO, ON or YES as one; quote it"
    if place.endswith(".[key]"):
        form = _FORMS["name" if loc[0] in ("rms", "variants") else "own_name"]
        return f"{place.removesuffix('.[key]')}: got the name {shown(got)}, expected {form}"
    form = _FORMS.get("own" if loc[:-1] == ("reward", "own") else loc[-1], str(fault["msg"]))
    return f"{place}: got {shown(got)}, expected {form.removeprefix('Input should be ')}"


def _missing(loc: tuple[str, ...]) -> str:
    """Return what is said of a missing key."""
    if (section := ".".join(loc[:-1])) in _OFF:
        return f"{section}: {_OFF[section]}"
    if loc[:2] == ("eval", "sets"):
        return f"{'.'.join(loc)}: missing; a set is added by {'.'.join(loc[:3])}=SOURCE"
    return f"{'.'.join(loc)}: missing; the recipe's defaults must begin with one of conf/'s roots"


def _added(place: str, fault: Mapping[str, Any]) -> str:
    """Return the error of a section that is one of several kinds, or holds sections by name."""
    got = fault["input"]
    if place in ("data.source", "teacher.kind", "editor.kind", "rm.kind") or place.endswith(
        (".policy.kind", ".scorer.kind")
    ):
        known, got = fault["ctx"]["expected_tags"].replace("'", "").split(", "), fault["ctx"]["tag"]
        return f"{place}: got {shown(got)}{nearest(got, known)}; available: {', '.join(known)}"
    if place == "data.mix":
        return f"{place}: got {shown(got)}, expected sources by name, each added by data.mix.NAME=SOURCE"
    if place.startswith("tasks"):
        return f"{place}: got {shown(got)}, expected tasks by name, each added by tasks.NAME=TASK"
    kinds = ", ".join(_RM_KINDS)
    return f"{place}: got {shown(got)}, expected reward models by name, each added by rms.NAME=KIND: {kinds}"


def _keys(model: type[BaseModel], place: str = "") -> Iterator[str]:
    """Yield every dotted key of a schema."""
    for name, field in model.model_fields.items():
        here = f"{place}.{name}" if place else name
        yield here
        for annotation in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                yield from _keys(annotation, here)

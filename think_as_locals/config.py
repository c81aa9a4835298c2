"""How a recipe becomes a RunConfig.

A recipe says how it differs from conf/, overrides say the rest, Hydra composes them, and the schema says whether the
result makes sense; where it does not, one message says all that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from think_as_locals.composition import compose_recipe, nearest
from think_as_locals.reward_names import component_faults
from think_as_locals.rm_schema import (
    ClassifierSection,
    ConstantSection,
    EvaluationConfig,
    ImplicitSection,
    JudgeSection,
    ServerSection,
)
from think_as_locals.schema import DataSection, RunConfig
from think_as_locals.scpo_schema import ScpoConfig
from think_as_locals.trl_fields import SECTIONS, trl_faults
from think_as_locals.types import ConfigError

_OFF = {  # sections that may be null, and what turns them on
    "sft": "this recipe has no cold start (sft is null): choose trainer=cold_start_grpo, or drop sft.*",
    "lora": "this run trains all weights (lora is null): choose lora=rank16, or drop lora.*",
    "global_rm": "this recipe loads its global RM (global_rm is null): choose global_rm=pooled, or drop global_rm.*",
    "model.scratch": "null here (the model is loaded): choose model=quickstart, or drop model.scratch.*",
}

_FORMS = {  # what keys expect that are checked by a pattern
    "name": "letters, digits, '.', '_' and '-' that do not leave the run directory",
    "own_name": "lower-case letters, digits and '_'",
    "own": "path/to/file.py:function or package.module:function",
}

_ROOTS = {"grpo": "trains a judge", "rms": "measures reward models", "scpo": "steers a reward model"}
"""A section that only recipes of one kind have, and what these do."""

_RM_KINDS: dict[str, type[BaseModel]] = {
    "judge": JudgeSection,
    "server": ServerSection,
    "classifier": ClassifierSection,
    "implicit": ImplicitSection,
    "constant": ConstantSection,
}


_Config = TypeVar("_Config", bound=BaseModel)


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
    return validate(_of_one_kind(compose_recipe(path, overrides)))


Config = RunConfig | EvaluationConfig | ScpoConfig
"""What a recipe can become: a judge that is trained, reward models that are measured, one that is steered."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """As `load_recipe`, of a recipe of any kind."""
    values = _of_one_kind(compose_recipe(path, overrides))
    if "rms" in values:
        return validate_evaluation(values)
    return validate_scpo(values) if "scpo" in values else validate(values)


def _of_one_kind(values: dict[str, Any]) -> dict[str, Any]:
    """See that an override of another kind of recipe has not made this one look like it."""
    found = [section for section in _ROOTS if section in values]
    if len(found) > 1:
        does = ", ".join(f"{section}.* is of a recipe that {_ROOTS[section]}" for section in found)
        raise ConfigError(
            f"{values['recipe']}: {does}; a run does one of these: drop the keys that are not this recipe's"
        )
    return values


def validate(values: Mapping[str, Any]) -> RunConfig:
    """A composed configuration as a RunConfig.

    Raises:
        ConfigError: as for `load_recipe`.
    """
    if "rms" in values or "scpo" in values:
        does = _ROOTS["rms" if "rms" in values else "scpo"]
        raise ConfigError(f"{values['recipe']} {does} and trains no judge: `tal run` takes it")
    return checked(RunConfig, values, _cross_faults, component_faults(values.get("reward")))


def validate_evaluation(values: Mapping[str, Any]) -> EvaluationConfig:
    """A composed configuration as an EvaluationConfig.

    Raises:
        ConfigError: as for `load_recipe`.
    """
    return checked(EvaluationConfig, values, _rm_faults)


def validate_scpo(values: Mapping[str, Any]) -> ScpoConfig:
    """A composed configuration as a ScpoConfig.

    Raises:
        ConfigError: as for `load_recipe`.
    """
    return checked(ScpoConfig, values, ScpoConfig.faults)


def checked(
    schema: type[_Config], values: Mapping[str, Any], cross: Callable[[_Config], list[str]], known: Sequence[str] = ()
) -> _Config:
    """Values by their schema, then by what only several keys together can break (`cross`).

    Raises:
        ConfigError: one message with every fault, those that are `known` already among them.
    """
    faults = list(known)
    faults += [fault for section in SECTIONS if section in schema.model_fields for fault in trl_faults(section, values)]
    try:
        config = schema.model_validate(values)
        faults += cross(config)
        if isinstance(config, Config):
            faults += _data_faults(config.data)
    except ValidationError as error:
        faults += [_fault(dict(fault), schema) for fault in error.errors()]
    if faults:
        told = "\n".join(f"  - {fault}" for fault in dict.fromkeys(faults))
        raise ConfigError(f"the configuration does not hold:\n{told}")
    return config


def _fault(fault: Mapping[str, Any], schema: type[BaseModel]) -> str:
    """One pydantic error as a sentence."""
    loc, got = tuple(map(str, fault["loc"])), fault.get("input")
    known = sorted(_keys(schema))
    if loc[0] == "rms" and len(loc) > 2:  # rms, its name, its kind, the key
        known = [f"rms.{loc[1]}.{key}" for key in _RM_KINDS[loc[2]].model_fields]
        loc = (*loc[:2], *loc[3:])
    place = ".".join(loc)
    if fault["type"] == "extra_forbidden":
        return f"{place}: no such key{nearest(place, known)}"
    if loc[0] == "rms" and len(loc) < 3:
        return (
            f"{place}: got {got!r}, expected reward models by name, each added by rms.NAME=KIND: {', '.join(_RM_KINDS)}"
        )
    if fault["type"] == "finite_number":
        return f"{place}: got {got}, expected a finite number"
    if loc[-1] == "url":  # what was got may hold a password
        return f"{place}: expected http[s]://HOST[:PORT][/PATH] without user or key, which the environment names"
    if fault["type"] == "missing" and (section := place.rpartition(".")[0]) in _OFF:
        return f"{section}: {_OFF[section]}"
    if fault["type"] == "missing":
        return f"{place}: missing; the recipe's defaults must begin with one of conf/'s roots"
    if isinstance(got, bool) and "str" in fault["type"]:
        return f"{place}: got the boolean {str(got).lower()}: YAML reads an unquoted NO, ON or YES so; put it in quotes"
    if place.endswith(".[key]"):
        return f"{place.removesuffix('.[key]')}: got the name {got!r}, expected {_FORMS['own_name']}"
    form = _FORMS.get("own" if loc[:-1] == ("reward", "own") else loc[-1], str(fault["msg"]))
    return f"{place}: got {got!r}, expected {form.removeprefix('Input should be ')}"


def _cross_faults(config: RunConfig) -> list[str]:
    """Faults that only several keys together have, and names that live outside this schema."""
    faults = []
    if (config.model.path is None) == (config.model.scratch is None):
        got = "neither" if config.model.path is None else "both"
        faults.append(f"model: got {got} of model.path and model.scratch, expected one of them")
    if config.sft is None and config.model.scratch is not None:
        faults.append("sft: a model made from scratch needs a cold start (trainer=cold_start_grpo), or set model.path")
    if config.sft and config.sft.biased_wrong + config.sft.biased_right > 1:
        faults.append("sft.biased_right: it and sft.biased_wrong are shares of the same mentions and must not exceed 1")
    if config.grpo.max_steps == 0:
        faults.append("grpo.max_steps: got 0, expected at least 1, or -1 for as many as grpo.num_train_epochs takes")
    return faults + prompt_faults("prompt.template", config.prompt.template) + config.reward.faults(config.grpo)


def _data_faults(data: DataSection) -> list[str]:
    """A path that nothing would read: who gives one wants its rows learnt from."""
    if data.path is None or not data.source.endswith("_cards"):
        return []
    read = "choose data=jsonl, or whose rows they are, or set data.path=null"
    return [f"data.path: got {data.path!r}, but {data.source} is embedded: {read}"]


def _rm_faults(config: EvaluationConfig) -> list[str]:
    """Faults that several keys of a reward model have together."""
    faults = []
    for name, rm in config.rms.items():
        if not isinstance(rm, JudgeSection | ServerSection):
            continue
        faults += prompt_faults(f"rms.{name}.prompt", rm.prompt)
        if config.eval.candidates and rm.protocol in ("pairwise", "round_robin"):
            faults.append(f"rms.{name}.protocol: got {rm.protocol}; eval.candidates needs listwise or pointwise")
        most = {"listwise": 8, "pairwise": 2, "round_robin": 2, "pointwise": 1}[rm.protocol]
        if rm.orders > most:
            faults.append(f"rms.{name}.orders: got {rm.orders}, expected at most {most} with protocol {rm.protocol}")
    return faults


def prompt_faults(place: str, name: str | None) -> list[str]:
    """What is wrong with the name of a prompt template at a place of the configuration."""
    folder = Path(__file__).parent / "judging" / "prompts"
    known = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if name is None or name in known:
        return []
    return [f"{place}: no {name!r}{nearest(name, known)}; available: {', '.join(known)}"]


def _keys(model: type[BaseModel], place: str = "") -> Iterator[str]:
    """Every dotted key of the schema."""
    for name, field in model.model_fields.items():
        here = f"{place}.{name}" if place else name
        yield here
        for annotation in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                yield from _keys(annotation, here)

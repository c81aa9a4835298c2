"""The grid of a sweep: a job for each combination of the values that its overrides list, in Hydra's grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.compose import compose_recipe, read_override, reason
from think_as_locals.config.launch import read_launch
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.types import ConfigError

_VARIANT = "variant="
_MAX_NAME = 60  # characters, before the hash

Combination = tuple[str, ...]
"""An override for each varied key, e.g. `("seed=1", "grpo.beta=0.0")`; a variant comes first."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a sweep."""

    name: str
    combination: Combination
    overrides: list[str]  # of its combination and variant, and those that all jobs share
    config: RunConfig

    @property
    def label(self) -> str:
        """The combination, for tables and messages."""
        return " ".join(text.removeprefix(_VARIANT) for text in self.combination) or self.name


def job_name(combination: Combination) -> str:
    """Return a unique, readable name of a combination, whatever the order of its overrides."""
    combination = tuple(sorted(combination))
    parts = [text.lstrip("+~").partition("=") for text in combination]
    text = "_".join(f"{key.rpartition('.')[2]}-{value.replace('e+', 'e')}" for key, _, value in parts)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_MAX_NAME].strip("._-")
    unique = sha256("\n".join(combination).encode()).hexdigest()[:10]
    return f"{readable}-{unique}" if readable else unique


def split_values(overrides: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the overrides with one value, and for each of the others one override for each of its values."""
    from hydra.errors import HydraException

    shared, axes, keys = list[str](), list[list[str]](), list[str]()
    for text in overrides:
        override = read_override(text)
        keys.append(override.key_or_group)
        if not override.is_sweep_override():
            shared.append(text)
            continue
        try:
            axes.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
        except HydraException as error:
            raise ConfigError(f"{text}: {reason(error)}; expected KEY=A,B,... or range(FIRST,END)") from error
        if not axes[-1]:
            raise ConfigError(f"{text}: holds no value, so there is nothing to run")
        if keys[-1] == "variant":
            raise ConfigError(f"{text}: each variant of a recipe is run; leave one out by ~variants.NAME")
        if keys[-1].startswith("run."):
            raise ConfigError(f"{text}: a sweep has one {keys[-1]}; its jobs get names of their own")
    if several := [axis[0].partition("=")[0] for axis in axes if keys.count(axis[0].partition("=")[0].lstrip("+")) > 1]:
        raise ConfigError(f"{several[0]}: a key that varies is given once")
    return shared, axes


def make_jobs(recipe: str, overrides: Sequence[str]) -> list[Job]:
    """Compose and validate the job of each combination; one ConfigError names all faulty ones."""
    shared, axes = split_values(overrides)
    variants: Mapping[str, Sequence[str]] = compose_recipe(recipe, shared).get("variants") or {}
    if variants:
        axes = [[f"{_VARIANT}{name}" for name in variants], *axes]
    combinations = [*dict.fromkeys(product(*axes))]
    jobs, faults = list[Job](), list[str]()
    for combination in combinations:
        own = [*shared]
        for text in combination:
            own += variants[text.removeprefix(_VARIANT)] if text.startswith(_VARIANT) else [text]
        try:
            config = load_recipe(recipe, own).model_copy(update={"variants": {}})
            if (launch := read_launch(config.run.launch)).machines > 1:
                raise ConfigError(f"run.launch: {launch.name} is for several machines, a job of a sweep has one")
            jobs.append(Job(job_name(combination), combination, own, config))
        except ConfigError as error:
            faults.append(f"{' '.join(combination)}\n    {str(error).replace(chr(10), chr(10) + '    ')}")
    if faults:
        raise ConfigError(
            f"{len(faults)} of {len(combinations)} combinations are invalid, none was started:\n" + "\n".join(faults)
        )
    return jobs

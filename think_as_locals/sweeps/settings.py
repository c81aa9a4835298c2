"""The settings of a sweep, and the combinations of overrides that it runs, in Hydra's grammar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from think_as_locals.config.checks import validate_as
from think_as_locals.config.compose import ASSETS, group_options, nearest, read_override, reason
from think_as_locals.config.launch import find_launch, read_launch
from think_as_locals.config.schema import Section
from think_as_locals.runtime.gpus import visible_gpus
from think_as_locals.types import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.distributions import BaseDistribution

VARIANT = "variant="

Combination = tuple[str, ...]
"""An override for each varied key, e.g. `("seed=1", "grpo.beta=0.0")`; a variant comes first."""


class SweepSection(Section):
    """How combinations are found, and how jobs are launched."""

    search: Literal["grid", "optuna"]
    num_trials: PositiveInt
    trials_at_once: PositiveInt
    seed: NonNegativeInt
    launch: str | None
    own_gpus: bool


class _Root(Section):
    sweep: SweepSection


@dataclass(frozen=True, slots=True)
class Settings:
    """The sweep's own part of the command line."""

    option: str  # of conf/sweep
    overrides: tuple[str, ...]  # of its keys and of Hydra's
    section: SweepSection  # the resulting values
    launch_file: Path  # the accelerate configuration of each job
    gpu_shares: list[str]  # a job at a time has one; none if all jobs share all GPUs


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the sweep (`sweep`, `sweep.*`, `hydra.*`, `hydra/*`) and those of its jobs."""
    ours = [text for text in overrides if text.lstrip("+~").startswith(("sweep=", "sweep.", "hydra.", "hydra/"))]
    return ours, [text for text in overrides if text not in ours]


def load_settings(overrides: Sequence[str], launch: str | None = None) -> Settings:
    """Compose and validate a sweep's own settings; `launch` is the file of launch/ where these name none."""
    chosen = [text.partition("=")[2] for text in overrides if text.startswith("sweep=")]
    option = chosen[-1] if chosen else "local"
    known = group_options()["sweep"]
    if option not in known:
        raise ConfigError(f"sweep={option}: no such option{nearest(option, known)}; available: {', '.join(known)}")
    # `++` admits any key of the sweep, which the schema then checks, with suggestions.
    rest = tuple(
        f"++{text}" if text.startswith("sweep.") else text for text in overrides if not text.startswith("sweep=")
    )
    section = validate_as(_Root, {"sweep": dict(compose_settings(option, rest).sweep)}).sweep
    path = find_launch(section.launch or launch)
    accelerate = read_launch(path)
    if accelerate.machines > 1:
        raise ConfigError(f"sweep.launch: {path.stem} is for several machines, a job of a sweep has one")
    gpus, size = visible_gpus() if section.own_gpus else [], accelerate.processes
    if gpus and size > len(gpus):
        raise ConfigError(
            f"sweep.launch: a job of {path.stem} takes {size} GPUs, {len(gpus)} can be used here: "
            "choose another, or let jobs share the GPUs (sweep.own_gpus=false)"
        )
    shares = [",".join(gpus[first : first + size]) for first in range(0, len(gpus) - size + 1, size)]
    return Settings(option, rest, section, path, shares)


def compose_settings(option: str, overrides: Sequence[str]) -> Any:
    """Return an option of conf/sweep together with Hydra's own keys, for Hydra's launchers."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(ASSETS / "conf"), version_base="1.3"):
            return compose(f"sweep/{option}", list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        message = reason(error)
        missing = "; pip install 'think-as-locals[sweep]'" if "hydra/launcher" in message else ""
        raise ConfigError(f"sweep={option}: {message}{missing}") from error


@dataclass(frozen=True, slots=True)
class Space:
    """The overrides that a sweep varies, and those that all jobs share."""

    fixed: tuple[str, ...]  # overrides with one value
    swept: tuple[Override, ...]  # those with several values or an interval
    variants: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of the recipe, by name: overrides of each

    def overrides(self, combination: Combination) -> list[str]:
        """Return the overrides of a job, including those of its variant."""
        own = [each for each in combination if not each.startswith(VARIANT)]
        named = [each.removeprefix(VARIANT) for each in combination if each.startswith(VARIANT)]
        return [*self.fixed, *chain.from_iterable(self.variants[name] for name in named), *own]

    def combinations(self, search: str) -> list[Combination]:
        """Return all combinations of values; of an interval, which only a search can use, its two ends."""
        values = [[f"{VARIANT}{name}" for name in self.variants]] if self.variants else []
        if values and search != "grid":
            raise ConfigError("the recipe has variants, of which each is run: leave out sweep=optuna")
        for override in self.swept:
            key = override.get_key_element()
            if not override.is_interval_sweep():
                values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
                if not values[-1]:
                    raise ConfigError(f"{override.input_line}: holds no value, so there is nothing to run")
            elif search == "grid":
                raise ConfigError(f"{override.input_line}: an interval holds no list of values; choose sweep=optuna")
            else:
                values.append([f"{key}={end!r}" for end in _ends(override)])
        return list(dict.fromkeys(product(*values)))


def parse(overrides: Sequence[str]) -> Space:
    """Read overrides as Hydra does: `a=1,2`, `choice(...)`, `range(...)`, `glob(...)`, `interval(...)`."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with initialize_config_dir(str(ASSETS / "conf"), version_base="1.3"):  # glob(...) asks for a group's options
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = [read_override(text, parser) for text in overrides]
    swept = tuple(override for override in parsed if override.is_sweep_override())
    keys = [override.key_or_group for override in parsed]
    for override in swept:
        key = override.key_or_group
        if f"{key}=" == VARIANT:
            raise ConfigError(
                f"{override.input_line}: each variant of a recipe is run; leave one out by ~variants.NAME"
            )
        if key.startswith("run."):
            raise ConfigError(f"{override.input_line}: a sweep has one {key}; its jobs get names of their own")
        if keys.count(key) > 1:
            raise ConfigError(f"{key}: given {keys.count(key)} times; a key that varies, once")
    return Space(tuple(str(o.input_line) for o in parsed if o not in swept), swept)


def suggest(
    space: Space,
    run: Callable[[list[Combination]], Sequence[float | None] | None],
    num_trials: int,
    trials_at_once: int,
    seed: int,
) -> None:
    """Have optuna propose combinations (TPE); equal results give equal proposals, so that a sweep can continue.

    `run` returns the score of each combination (more is better, `None`: failed), or `None` to stop.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("sweep=optuna: optuna is not installed; pip install 'think-as-locals[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    distributions = {override.get_key_element(): _distribution(override) for override in space.swept}
    for done in range(0, num_trials, trials_at_once):
        trials = [study.ask(distributions) for _ in range(min(trials_at_once, num_trials - done))]
        scores = run([tuple(f"{key}={value}" for key, value in trial.params.items()) for trial in trials])
        if scores is None:
            return
        for trial, score in zip(trials, scores, strict=True):
            study.tell(trial, score, state=optuna.trial.TrialState.FAIL if score is None else None)


def _distribution(override: Override) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not override.is_interval_sweep():
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    low, high = _ends(override)
    log = "log" in override.value().tags  # type: ignore[union-attr]
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _ends(override: Override) -> tuple[float, float]:
    interval: Any = override.value()
    return interval.start, interval.end

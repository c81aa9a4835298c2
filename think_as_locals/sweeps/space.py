"""Overrides with several values -> combinations, in Hydra's own grammar, or as optuna proposes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from think_as_locals.config.compose import ASSETS, read_override
from think_as_locals.types import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.distributions import BaseDistribution

Combination = tuple[str, ...]
"""An override for each key that a sweep varies, e.g. `("seed=1", "grpo.beta=0.0")`."""


@dataclass(frozen=True, slots=True)
class Space:
    """What a sweep varies, and what all of its jobs share."""

    fixed: tuple[str, ...]  # overrides with one value
    swept: tuple[Override, ...]  # those with several values or an interval

    def combinations(self, search: str) -> list[Combination]:
        """Return every combination of the values; of an interval its two ends, which only a search can use."""
        values = []
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
    """Let optuna propose combinations (TPE); the same results give the same proposals, so that a sweep can continue.

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
            if score is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, score)


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
    from hydra.core.override_parser.types import IntervalSweep

    interval = override.value()
    if not isinstance(interval, IntervalSweep) or interval.start is None or interval.end is None:
        raise ConfigError(f"{override.input_line}: expected interval(low,high)")
    return interval.start, interval.end

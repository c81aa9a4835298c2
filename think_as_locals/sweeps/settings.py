"""What a sweep itself is told: how it finds combinations, which launcher of Hydra's runs its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from think_as_locals.composition import ASSETS, find_launch, group_options, launch_values, nearest, reason
from think_as_locals.config import checked
from think_as_locals.schema import Section
from think_as_locals.sweeps.gpus import shares, visible
from think_as_locals.types import ConfigError

DEFAULT = "local"


class SweepSection(Section):
    """How combinations are found, and what each job is launched with."""

    search: Literal["grid", "optuna"]
    num_trials: PositiveInt
    trials_at_once: PositiveInt
    seed: NonNegativeInt
    launch: str
    own_gpus: bool


class _Root(Section):
    sweep: SweepSection


@dataclass(frozen=True, slots=True)
class Settings:
    """A sweep's own part of the command line.

    Args:
        option: Of conf/sweep.
        overrides: Of its keys and of Hydra's.
        section: What they come to.
    """

    option: str
    overrides: tuple[str, ...]
    section: SweepSection

    @property
    def launch_file(self) -> Path:
        """The accelerate configuration of each job.

        Raises:
            ConfigError: there is none, or it wants several machines, which no job has.
        """
        path = find_launch(self.section.launch)
        if launch_values(path)["num_machines"] > 1:
            raise ConfigError(f"sweep.launch: {path.stem} is for several machines, a job of a sweep has one")
        return path

    @property
    def gpus(self) -> list[str]:
        """Shares of this machine's GPUs, of which each job has one to itself; none where jobs have what there is.

        Raises:
            ConfigError: a job takes more than there are.
        """
        found = visible() if self.section.own_gpus else []
        each = launch_values(self.launch_file)["num_processes"]
        if found and each > len(found):
            raise ConfigError(
                f"sweep.launch: a job of {self.launch_file.stem} takes {each} GPUs, {len(found)} can be used here: "
                "choose another, or let jobs share what there is (sweep.own_gpus=false)"
            )
        return shares(found, each)


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of the sweep (`sweep`, `sweep.*`, `hydra.*`, `hydra/*`) and those of its jobs.

    Example:
        >>> split(["sweep=joblib", "seed=1,2", "hydra.launcher.n_jobs=4"])
        (['sweep=joblib', 'hydra.launcher.n_jobs=4'], ['seed=1,2'])
    """
    ours = [text for text in overrides if text.lstrip("+~").startswith(("sweep=", "sweep.", "hydra.", "hydra/"))]
    return ours, [text for text in overrides if text not in ours]


def load_settings(overrides: Sequence[str]) -> Settings:
    """Compose the sweep's own part and validate it.

    Raises:
        ConfigError: an option or a key is unknown, a value is wrong, or the package of a launcher is not installed.
    """
    chosen = [text.partition("=")[2] for text in overrides if text.startswith("sweep=")]
    option = chosen[-1] if chosen else DEFAULT
    known = group_options()["sweep"]
    if option not in known:
        raise ConfigError(f"sweep={option}: no such option{nearest(option, known)}; available: {', '.join(known)}")
    # Any key of the sweep may be set or added: the schema says which are known, and the nearest.
    rest = tuple(
        f"++{text}" if text.startswith("sweep.") else text for text in overrides if not text.startswith("sweep=")
    )
    values = {"sweep": dict(compose_settings(option, rest).sweep)}
    settings = Settings(option, rest, checked(_Root, values, lambda config: []).sweep)
    _ = settings.gpus  # a fault in it, or in the launch file, is one of these settings
    return settings


def compose_settings(option: str, overrides: Sequence[str]) -> Any:
    """An option of conf/sweep with Hydra's own keys, as Hydra's launchers want it.

    Raises:
        ConfigError: Hydra cannot compose it.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(ASSETS / "conf"), version_base="1.3"):
            return compose(f"sweep/{option}", list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        said = reason(error)
        missing = "; pip install 'think-as-locals[sweep]'" if "hydra/launcher" in said else ""
        raise ConfigError(f"sweep={option}: {said}{missing}") from error

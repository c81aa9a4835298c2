"""The jobs of a sweep: a combination each, validated before any starts and frozen as a recipe of its own.

A sweep's folder has `jobs/NAME/` with what starts a job (its frozen recipe, which can be launched by hand), its log and
how it ended, and beside it `NAME/`, the run's own folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

import yaml

from think_as_locals.config import load_recipe
from think_as_locals.files import write_json, write_text
from think_as_locals.schema import RunConfig
from think_as_locals.sweeps.space import Combination, Space
from think_as_locals.types import ConfigError

JOBS, LOG, ENDED, STOP = "jobs", "log.txt", "ended.json", ".stop"
STOPPED = 75
_HEAD = "if __name__ == \"__main__\": from think_as_locals.cli import main; main(__file__); r'''"
_LONGEST_NAME = 60  # characters, before what makes it unique


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep.

    Args:
        name: Of its run; the same combination has the same name.
        combination: What sets it apart from the other jobs.
        config: What it comes to.
    """

    name: str
    combination: Combination
    config: RunConfig


def name_of(combination: Combination) -> str:
    """A name that says the combination, as far as a file's name can, and that no other has; order does not matter.

    Example:
        >>> name_of(("seed=1", "grpo.learning_rate=1e-6"))
        'learning_rate-1e-6_seed-1-6333c7f878'
    """
    combination = tuple(sorted(combination))
    parts = [text.lstrip("+~").partition("=") for text in combination]
    said = "_".join(f"{key.rpartition('.')[2]}-{value.replace('e+', 'e')}" for key, _, value in parts)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", said)[:_LONGEST_NAME].strip("._-")
    unique = sha256("\n".join(combination).encode()).hexdigest()[:10]
    return f"{readable}-{unique}" if readable else unique


def make_jobs(recipe: str, space: Space, combinations: Sequence[Combination]) -> list[Job]:
    """Compose and validate every combination.

    Raises:
        ConfigError: one message with all that are faulty, and what is wrong with each.
    """
    jobs, faults = [], []
    for combination in combinations:
        try:
            config = load_recipe(recipe, [*space.fixed, *combination])
            jobs.append(Job(name_of(combination), combination, config))
        except ConfigError as error:
            faults.append(f"{' '.join(combination)}\n    {str(error).replace(chr(10), chr(10) + '    ')}")
    if faults:
        raise ConfigError(
            f"{len(faults)} of {len(combinations)} combinations do not hold, none was started:\n" + "\n".join(faults)
        )
    return jobs


def freeze(job: Job, sweep: Path) -> Path:
    """Write a job's recipe, with every value as it was composed: nothing is looked up in conf/ again.

    Raises:
        ConfigError: the recipe would not say the same as the configuration.
    """
    run = job.config.run.model_copy(update={"name": job.name, "dir": str(sweep), "resume": "auto"})
    config = job.config.model_copy(update={"run": run})
    body = yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)
    path = sweep / JOBS / job.name / f"{config.recipe}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    said = "".join(character if character.isprintable() else "?" for character in " ".join(job.combination))
    body = f"# A job of the sweep {sweep.name}: {said}\n{body}"
    write_text(path, f"{_HEAD}\n{body}# '''\n")
    if "'''" in body or not _says(path, config):
        path.unlink()
        raise ConfigError(
            f"{job.name}: a value holds ''' or ${{...}}, or '' in quotes, which no recipe can say literally"
        )
    return path


def _says(path: Path, config: RunConfig) -> bool:
    try:
        return load_recipe(path) == config
    except ConfigError:
        return False


def recipe_of(folder: Path) -> Path:
    """The frozen recipe in a job's folder."""
    (path,) = folder.glob("*.yaml")
    return path


def ended(folder: Path) -> int | None:
    """The exit status of a job; `None` where it has not ended."""
    path = folder / ENDED
    return int(json.loads(path.read_text(encoding="utf-8"))["status"]) if path.is_file() else None


def end(folder: Path, status: int) -> None:
    """Record how a job ended: last of all, so that it is not repeated."""
    write_json(folder / ENDED, {"status": status})


State = Literal["done", "failed", "stopped"]


def state(status: int | None, asked: bool = False) -> State:
    """What an exit status means; a job without one was not let start, or finish, where the sweep was asked to stop."""
    if status == 0:
        return "done"
    return "stopped" if status == STOPPED or (status is None and asked) else "failed"

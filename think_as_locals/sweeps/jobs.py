"""The jobs of a sweep: one for each combination, frozen as a recipe of its own and run by `accelerate launch`.

A sweep's folder has `jobs/NAME/` with a job's frozen recipe (which can also be launched by hand), its log and its exit
status, and beside it `NAME/`, the folder of the run.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import yaml

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.compose import ASSETS, read_launch
from think_as_locals.config.schema import RunConfig
from think_as_locals.runtime.files import write_json, write_text
from think_as_locals.sweeps.space import Combination, Space
from think_as_locals.types import ConfigError

JOBS, LOG, STATUS, STOP = "jobs", "log.txt", "ended.json", ".stop"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
STOPPED_STATUS = 75
_HEAD = "if __name__ == \"__main__\": from think_as_locals.cli import main; main(__file__); r'''"
_MAX_NAME = 60  # characters, before the hash
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep: its name, the combination that sets it apart and the whole configuration."""

    name: str
    combination: Combination
    config: RunConfig


def job_name(combination: Combination) -> str:
    """Return a unique name that shows the combination as far as a file name can; its order does not matter.

    Example:
        >>> job_name(("seed=1", "grpo.learning_rate=1e-6"))
        'learning_rate-1e-6_seed-1-6333c7f878'
    """
    combination = tuple(sorted(combination))
    parts = [text.lstrip("+~").partition("=") for text in combination]
    text = "_".join(f"{key.rpartition('.')[2]}-{value.replace('e+', 'e')}" for key, _, value in parts)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_MAX_NAME].strip("._-")
    unique = sha256("\n".join(combination).encode()).hexdigest()[:10]
    return f"{readable}-{unique}" if readable else unique


def make_jobs(recipe: str, space: Space, combinations: Sequence[Combination]) -> list[Job]:
    """Compose and validate every combination; one error names all faulty ones."""
    jobs, faults = [], []
    for combination in combinations:
        try:
            jobs.append(Job(job_name(combination), combination, load_recipe(recipe, [*space.fixed, *combination])))
        except ConfigError as error:
            faults.append(f"{' '.join(combination)}\n    {str(error).replace(chr(10), chr(10) + '    ')}")
    if faults:
        raise ConfigError(
            f"{len(faults)} of {len(combinations)} combinations are invalid, none was started:\n" + "\n".join(faults)
        )
    return jobs


def freeze(job: Job, sweep: Path) -> Path:
    """Write a job's recipe with every value as composed, so that conf/ is not read again."""
    run = job.config.run.model_copy(update={"name": job.name, "dir": str(sweep), "resume": "auto"})
    config = job.config.model_copy(update={"run": run})
    body = yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)
    path = sweep / JOBS / job.name / f"{config.recipe}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    comment = "".join(character if character.isprintable() else "?" for character in " ".join(job.combination))
    body = f"# A job of the sweep {sweep.name}: {comment}\n{body}"
    write_text(path, f"{_HEAD}\n{body}# '''\n")
    try:
        same = "'''" not in body and load_recipe(path) == config
    except ConfigError:
        same = False
    if not same:
        path.unlink()
        raise ConfigError(
            f"{job.name}: a value holds ''' or ${{...}}, or '' in quotes, which a recipe cannot hold literally"
        )
    return path


def read_status(folder: Path) -> int | None:
    """Return the exit status of a job; `None` where it has not ended."""
    path = folder / STATUS
    return int(json.loads(path.read_text(encoding="utf-8"))["status"]) if path.is_file() else None


def write_status(folder: Path, status: int) -> None:
    """Record the exit status of a job; this comes last, so that the job is not repeated."""
    write_json(folder / STATUS, {"status": status})


State = Literal["done", "failed", "stopped"]


def job_state(status: int | None, stop_requested: bool = False) -> State:
    """Return what an exit status means; without one, a sweep that was asked to stop did not start or finish the job."""
    if status == 0:
        return "done"
    return "stopped" if status == STOPPED_STATUS or (status is None and stop_requested) else "failed"


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs one job; the task function of a Hydra launcher, in whatever process or on whatever node that calls it.

    To stop a sweep, its `.stop` file is made, which every machine of a cluster sees: running jobs save and stop, and
    waiting ones do not start.
    """

    sweep: Path
    launch_file: Path  # accelerate configuration
    gpu_shares: tuple[str, ...] = ()  # a job has one to itself; without any, all there is

    def __call__(self, config: Any) -> None:
        """Run the job that a configuration names to its end, with its output in its log."""
        folder = self.sweep / JOBS / config.job
        with self._hold_gpus() as gpus:
            if self._stop_requested():
                return
            (recipe,) = folder.glob("*.yaml")
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            with (folder / LOG).open("ab") as log:
                process = subprocess.Popen(  # noqa: S603
                    self._command(recipe),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **gpus, "PATH": path},
                )
            terminated = False
            while process.poll() is None:
                if not terminated and self._stop_requested():
                    process.terminate()
                    terminated = True
                time.sleep(_POLL_S)
        write_status(folder, STOPPED_STATUS if terminated and process.returncode else process.returncode)

    def _stop_requested(self) -> bool:
        return (self.sweep / STOP).exists()

    def _command(self, recipe: Path) -> list[str]:
        """Return a call of `launch/node.sh`: accelerate launch that ends in order and passes status 75 on."""
        several = read_launch(self.launch_file).processes > 1
        port = ["--main_process_port", "0"] if several else []  # a free one: another job may have the usual
        script = str(ASSETS / "launch" / "node.sh")
        return ["bash", script, "--config_file", str(self.launch_file), *port, str(recipe)]

    @contextmanager
    def _hold_gpus(self) -> Iterator[dict[str, str]]:
        """Wait for a share of the GPUs, and yield the environment of a job that has it to itself.

        Nothing is held without shares, or when the sweep is asked to stop. Locks end with the process.
        """
        while self.gpu_shares and not self._stop_requested():
            for number, share in enumerate(self.gpu_shares):
                with (self.sweep / JOBS / f".gpus-{number}").open("w") as lock:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield {GPUS_VARIABLE: share}
                    return
            time.sleep(_POLL_S)
        yield {}

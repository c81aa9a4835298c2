"""The jobs of a sweep: one for each combination, frozen as a recipe of its own and run by one of Hydra's launchers.

A sweep's folder has, for each job, `jobs/NAME/` with its frozen recipe (which can also be launched by hand), log and
exit status, and `NAME/`, the folder of its run.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import yaml

from think_as_locals.config.checks import load_recipe
from think_as_locals.config.compose import ASSETS, quoted
from think_as_locals.config.launch import read_launch
from think_as_locals.config.schema import RunConfig
from think_as_locals.runtime.files import read_json, write_json, write_text
from think_as_locals.runtime.gpus import GPUS_VARIABLE
from think_as_locals.runtime.processes import STOP_SIGNALS, on_signals
from think_as_locals.sweeps.settings import Combination, Settings, Space, compose_settings
from think_as_locals.types import ConfigError

JOBS, LOG, STATUS, STOP = "jobs", "log.txt", "ended.json", ".stop"
STOPPED_STATUS = 75
_HEAD = "if __name__ == \"__main__\": from think_as_locals.cli import main; main(__file__); r'''"
_MAX_NAME = 60  # characters, before the hash
_POLL_S = 0.2
_LAUNCHER = (
    "import json, sys; from think_as_locals.sweeps.jobs import run_launcher; run_launcher(*json.loads(sys.argv[1]))"
)


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a sweep: its name, its combination of overrides and the whole configuration."""

    name: str
    combination: Combination
    config: RunConfig


def job_name(combination: Combination) -> str:
    """Return a unique, readable name of a combination, whatever the order of its overrides."""
    combination = tuple(sorted(combination))
    parts = [text.lstrip("+~").partition("=") for text in combination]
    text = "_".join(f"{key.rpartition('.')[2]}-{value.replace('e+', 'e')}" for key, _, value in parts)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_MAX_NAME].strip("._-")
    unique = sha256("\n".join(combination).encode()).hexdigest()[:10]
    return f"{readable}-{unique}" if readable else unique


def make_jobs(recipe: str, space: Space, combinations: Sequence[Combination]) -> list[Job]:
    """Compose and validate all combinations; one ConfigError names all faulty ones."""
    jobs, faults = [], []
    for combination in combinations:
        try:
            config = load_recipe(recipe, space.overrides(combination)).model_copy(update={"variants": {}})
            jobs.append(Job(job_name(combination), combination, config))
        except ConfigError as error:
            faults.append(f"{' '.join(combination)}\n    {str(error).replace(chr(10), chr(10) + '    ')}")
    if faults:
        raise ConfigError(
            f"{len(faults)} of {len(combinations)} combinations are invalid, none was started:\n" + "\n".join(faults)
        )
    return jobs


def freeze(job: Job, sweep: Path) -> Path:
    """Write a job's recipe with all values as composed, independent of conf/."""
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
    """Return the exit status of a job; `None` if it has not ended."""
    path = folder / STATUS
    return int(read_json(path)["status"]) if path.is_file() else None


State = Literal["done", "failed", "stopped"]


def job_state(status: int | None, stop_requested: bool = False) -> State:
    """Return the state of a job by its exit status; without one it was stopped, if the sweep was, or failed."""
    if status == 0:
        return "done"
    return "stopped" if status == STOPPED_STATUS or (status is None and stop_requested) else "failed"


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs one job: the task function of a Hydra launcher, in any process and on any node.

    When a sweep's `.stop` file exists, which all nodes see, running jobs save and stop, and waiting ones do not start.
    """

    sweep: Path
    launch_file: Path  # accelerate configuration
    gpu_shares: tuple[str, ...] = ()  # a job has one to itself; without any, all there is

    def __call__(self, config: Any) -> None:
        """Run the job that a configuration names to its end, with its output in the log."""
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
        # Last: a job that has this file is not repeated.
        write_json(
            folder / STATUS, {"status": STOPPED_STATUS if terminated and process.returncode else process.returncode}
        )

    def _stop_requested(self) -> bool:
        return (self.sweep / STOP).exists()

    def _command(self, recipe: Path) -> list[str]:
        """Return a call of `launch/node.sh`: accelerate launch with an orderly end, which passes on status 75."""
        several = read_launch(self.launch_file).processes > 1
        port = ["--main_process_port", "0"] if several else []  # any free one: another job may use the default
        script = str(ASSETS / "launch" / "node.sh")
        return ["bash", script, "--config_file", str(self.launch_file), *port, str(recipe)]

    @contextmanager
    def _hold_gpus(self) -> Iterator[dict[str, str]]:
        """Wait for a share of the GPUs, unless the sweep stops, and yield the environment for a job."""
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


@contextmanager
def stop_signals(sweep: Path) -> Iterator[list[int]]:
    """Yield the list of received signals: the first has all jobs save and stop, at the second `launch` kills them."""
    received: list[int] = []

    def receive(number: int) -> None:
        received.append(number)
        (sweep / STOP).touch()

    (sweep / STOP).unlink(missing_ok=True)
    # SIGHUP, as a closing terminal would otherwise end the sweep but not its jobs.
    with on_signals(receive, (*STOP_SIGNALS, signal.SIGHUP)):
        yield received


def launch(
    names: Sequence[str],
    sweep: Path,
    settings: Settings,
    received: Sequence[int],
    lock: int,
    on_end: Callable[[str], None],
) -> None:
    """Run frozen jobs to their ends; each records its exit status, then `on_end` is called with its name.

    Hydra's launcher runs in a process of its own, which does not get the signals that terminals and clusters send to
    this one: it and its workers watch their jobs to the end. If this process is killed, a pipe closes, and they have
    their jobs save and stop; until then they hold the lock of the sweep.
    """
    import psutil

    task = [names, str(sweep), settings.option, settings.overrides, str(settings.launch_file), settings.gpu_shares]
    command = [sys.executable, "-c", _LAUNCHER, json.dumps(task)]
    process = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[lock]
    )
    running = list(names)
    try:
        while running and process.poll() is None and len(received) < 2:
            time.sleep(_POLL_S)
            for name in [name for name in running if read_status(sweep / JOBS / name) is not None]:
                running.remove(name)
                on_end(name)
        if len(received) < 2:
            process.wait()
    finally:
        if process.poll() is None:
            launcher = psutil.Process(process.pid)
            for each in (*launcher.children(recursive=True), launcher):
                each.kill()
            process.wait()


def run_launcher(
    names: list[str], sweep: str, option: str, overrides: list[str], launch_file: str, gpu_shares: list[str]
) -> None:
    """Run the jobs by Hydra's launcher, in the process that `launch` starts."""
    from hydra import initialize_config_dir
    from hydra._internal.callbacks import Callbacks
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext

    Thread(target=_stop_when_orphaned, args=[Path(sweep) / STOP], daemon=True).start()
    folder = quoted(str(Path(sweep) / JOBS))
    ours = [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=${job}", "hydra.output_subdir=null"]
    config = compose_settings(option, [*overrides, *ours])
    with initialize_config_dir(str(ASSETS / "conf"), version_base="1.3"):
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks()),
            task_function=Runner(Path(sweep), Path(launch_file), tuple(gpu_shares)),
            config=config,
        )
        launcher.launch([[f"job={name}"] for name in names], initial_job_idx=0)


def _stop_when_orphaned(stop: Path) -> None:
    """Have the jobs stop when the parent process has ended."""
    os.read(sys.stdin.fileno(), 1)  # returns when the pipe closes; a buffered read would hold a lock as Python ends
    stop.touch()

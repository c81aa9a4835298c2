"""Run a sweep: overrides -> a grid of jobs -> frozen recipes -> one of Hydra's launchers -> a paired table.

A sweep's folder has, for each job, `jobs/NAME/` with its frozen recipe (which can also be run by hand), log and exit
status, and `NAME/`, the folder of its run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from think_as_locals.config.compose import ASSETS, group_options, nearest, quoted, reason
from think_as_locals.evaluation.tables import on_terminal
from think_as_locals.runtime.files import write_text
from think_as_locals.runtime.output import print_result
from think_as_locals.runtime.processes import STOP_SIGNALS, on_signals
from think_as_locals.runtime.run_folder import RunFolder, check_resumable, lock_run_dir, refuse_links, resumable
from think_as_locals.runtime.terminal import progress_console
from think_as_locals.sweeps.grid import Job, make_jobs
from think_as_locals.sweeps.runner import LOG, POLL_S, STATUS, STOP, STOPPED_STATUS, read_status
from think_as_locals.sweeps.table import State, write_table
from think_as_locals.types import ConfigError, RunStoppedError

JOBS = "jobs"


def plan(recipe: str, overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name of each job that a sweep would run, and its overrides."""
    launcher, rest = split_overrides(overrides)
    check_launcher(launcher)
    return [(job.name, " ".join(job.overrides)) for job in make_jobs(recipe, rest)]


def sweep(recipe: str, overrides: Sequence[str]) -> tuple[Path, bool]:
    """Run every combination of values; return the sweep's folder, and whether all jobs are done."""
    launcher, rest = split_overrides(overrides)
    check_launcher(launcher)
    jobs = make_jobs(recipe, rest)
    run = jobs[0].config.run
    folder = Path(run.dir).expanduser().resolve() / run.name
    if folder.exists() and run.resume == "never":
        raise ConfigError(f"{folder} exists: choose another run.name, or continue it with run.resume=auto")
    if folder.exists() and not (folder / JOBS).is_dir():
        raise ConfigError(f"{folder} exists and is not the folder of a sweep: choose another run.name")
    refuse_links(folder)
    (folder / JOBS).mkdir(parents=True, exist_ok=True)
    stop = folder / JOBS / STOP

    def request_stop(_: int) -> None:
        with stop.open("ab") as file:
            file.write(b".")

    signals = (*STOP_SIGNALS, signal.SIGHUP)  # a closing terminal would otherwise end the sweep but not its jobs
    with resumable(folder), lock_run_dir(folder) as lock, on_signals(request_stop, signals):
        stop.unlink(missing_ok=True)
        _run_pending(jobs, folder, launcher, lock)
        states = {job.name: _state(folder, job) for job in jobs}
        table, caption = write_table(folder, jobs, states)
    failed = [job for job in jobs if states[job.name] == "failed"]
    print_result(
        on_terminal(table, folder.name, caption),
        *(f"failed: {job.label}: {folder / JOBS / job.name / LOG}" for job in failed),
        f"table {RunFolder(folder).sweep.with_suffix('.md')}",
    )
    if stop.exists():
        raise RunStoppedError(f"{folder.name} was stopped: continue it with run.name={folder.name} run.resume=auto")
    return folder, all(state == "done" for state in states.values())


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that choose and set Hydra's launcher, and those of the jobs."""
    ours = [text for text in overrides if text.lstrip("+~").startswith(("sweep=", "hydra.", "hydra/"))]
    return ours, [text for text in overrides if text not in ours]


def check_launcher(overrides: Sequence[str]) -> None:
    """Compose a launcher's settings, so that a fault shows before anything is written."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    option, words = _option(overrides)
    known = group_options()["sweep"]
    if option not in known:
        raise ConfigError(f"sweep={option}: no such option{nearest(option, known)}; available: {', '.join(known)}")
    try:
        with initialize_config_dir(str(ASSETS / "conf"), version_base="1.3"):
            compose(f"sweep/{option}", words, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        message = reason(error)
        missing = "; pip install 'think-as-locals[sweep]'" if "hydra/launcher" in message else ""
        raise ConfigError(f"sweep={option}: {message}{missing}") from error


def _option(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """Return the option of conf/sweep that is chosen, and the overrides of Hydra's keys."""
    chosen = [text.removeprefix("sweep=") for text in overrides if text.startswith("sweep=")]
    return (chosen or ["local"])[-1], [text for text in overrides if not text.startswith("sweep=")]


def _run_pending(jobs: Sequence[Job], folder: Path, launcher: Sequence[str], lock: int) -> None:
    """Freeze and run the jobs that are not done."""
    progress = progress_console()
    for job in jobs:
        if (run := RunFolder(folder / job.name)).config.is_file():
            check_resumable(job.config, run)
    pending = {job.name: job for job in jobs if read_status(folder / JOBS / job.name) != 0}
    if skipped := len(jobs) - len(pending):
        progress.print(f"{skipped} of {len(jobs)} jobs are done already")
    for job in pending.values():
        (folder / JOBS / job.name / STATUS).unlink(missing_ok=True)
        freeze(job, folder)

    def print_end(name: str) -> None:
        progress.print(f"{_state(folder, pending[name])}  {pending[name].label}")

    if pending:
        launch([*pending], folder, launcher, lock, print_end)


def freeze(job: Job, sweep: Path) -> Path:
    """Write a job's recipe with all values as composed, independent of conf/, and return its path."""
    run = job.config.run.model_copy(update={"name": job.name, "dir": str(sweep), "resume": "auto"})
    path = sweep / JOBS / job.name / f"{job.config.recipe}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, job.config.model_copy(update={"run": run}).to_yaml())
    return path


def launch(
    names: Sequence[str], sweep: Path, launcher: Sequence[str], lock: int, on_end: Callable[[str], None]
) -> None:
    """Run frozen jobs to their ends by Hydra's launcher; `on_end` is called with the name of each that has ended.

    The launcher has a session of its own, so that a terminal's Ctrl-C reaches this process alone, and holds the lock of
    the sweep as long as it lives.
    """
    option, words = _option(launcher)
    listed = ",".join(f'"{name}"' for name in names)
    ours = [f"hydra.sweep.dir={quoted(str(sweep / JOBS))}", f"job={listed}"]
    command = [sys.executable, "-m", "think_as_locals.sweeps.runner", "-m", f"--config-name=sweep/{option}"]
    process = subprocess.Popen(  # noqa: S603
        [*command, *words, *ours], stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[lock]
    )
    running, has_ended = list(names), False
    while running and not has_ended:
        time.sleep(POLL_S)
        has_ended = process.poll() is not None  # before the last look at what its jobs recorded
        for name in [name for name in running if read_status(sweep / JOBS / name) is not None]:
            running.remove(name)
            on_end(name)
    process.wait()


def _state(sweep: Path, job: Job) -> State:
    """Return the state of a job that is not running; without an exit status it was stopped, if the sweep was."""
    status = read_status(sweep / JOBS / job.name)
    if status == 0:
        return "done"
    stopped = status == STOPPED_STATUS or (status is None and (sweep / JOBS / STOP).exists())
    return "stopped" if stopped else "failed"

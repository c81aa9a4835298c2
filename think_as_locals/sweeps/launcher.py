"""How a sweep's jobs are launched: its settings, and one of Hydra's launchers in a process of its own.

Terminals and clusters send their signals to the process that the person started, which makes the `.stop` file. They do
not reach the launcher and its workers, none of which dies while it still has jobs to watch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from think_as_locals.config.checks import validate_as
from think_as_locals.config.compose import ASSETS, find_launch, group_options, nearest, read_launch, reason
from think_as_locals.config.schema import Section
from think_as_locals.sweeps.jobs import GPUS_VARIABLE, JOBS, STOP, Runner, read_status
from think_as_locals.types import ConfigError

_POLL_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


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
    """A sweep's own part of the command line."""

    option: str  # of conf/sweep
    overrides: tuple[str, ...]  # of its keys and of Hydra's
    section: SweepSection  # the resulting values
    launch_file: Path  # the accelerate configuration of each job
    gpu_shares: list[str]  # one for each job at a time; none where jobs share what there is


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of the sweep (`sweep`, `sweep.*`, `hydra.*`, `hydra/*`) and those of its jobs.

    Example:
        >>> split_overrides(["sweep=joblib", "seed=1,2", "hydra.launcher.n_jobs=4"])
        (['sweep=joblib', 'hydra.launcher.n_jobs=4'], ['seed=1,2'])
    """
    ours = [text for text in overrides if text.lstrip("+~").startswith(("sweep=", "sweep.", "hydra.", "hydra/"))]
    return ours, [text for text in overrides if text not in ours]


def load_settings(overrides: Sequence[str]) -> Settings:
    """Compose and validate a sweep's own settings."""
    chosen = [text.partition("=")[2] for text in overrides if text.startswith("sweep=")]
    option = chosen[-1] if chosen else "local"
    known = group_options()["sweep"]
    if option not in known:
        raise ConfigError(f"sweep={option}: no such option{nearest(option, known)}; available: {', '.join(known)}")
    # `++` lets any key of the sweep through: the schema says which are known, and the nearest.
    rest = tuple(
        f"++{text}" if text.startswith("sweep.") else text for text in overrides if not text.startswith("sweep=")
    )
    values = {"sweep": dict(compose_settings(option, rest).sweep)}
    section = validate_as(_Root, values).sweep
    path = find_launch(section.launch)
    accelerate = read_launch(path)
    if accelerate.machines > 1:
        raise ConfigError(f"sweep.launch: {path.stem} is for several machines, a job of a sweep has one")
    gpus = visible_gpus() if section.own_gpus else []
    if gpus and accelerate.processes > len(gpus):
        raise ConfigError(
            f"sweep.launch: a job of {path.stem} takes {accelerate.processes} GPUs, {len(gpus)} can be used here: "
            "choose another, or let jobs share what there is (sweep.own_gpus=false)"
        )
    return Settings(option, rest, section, path, gpu_shares(gpus, accelerate.processes))


def compose_settings(option: str, overrides: Sequence[str]) -> Any:
    """Return an option of conf/sweep with Hydra's own keys, as Hydra's launchers expect it."""
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


def visible_gpus() -> list[str]:
    """Return the GPUs that a process started here may use, as CUDA_VISIBLE_DEVICES names them."""
    if (named := os.environ.get(GPUS_VARIABLE)) is not None:
        # CUDA takes the names before the first unknown one, and -1 is the usual way to say none.
        return [] if named.strip() in ("", "-1", "NoDevFiles") else [name.strip() for name in named.split(",")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    done = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)  # noqa: S603
    count = sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0
    return [str(index) for index in range(count)]


def gpu_shares(gpus: Sequence[str], size: int) -> list[str]:
    """Return GPUs in shares of one size; a remainder is not used.

    Example:
        >>> gpu_shares(["0", "1", "2", "3", "4"], 2)
        ['0,1', '2,3']
    """
    return [",".join(gpus[first : first + size]) for first in range(0, len(gpus) - size + 1, size)]


@contextmanager
def stop_signals(sweep: Path) -> Iterator[list[int]]:
    """Yield the signals received: the first asks all jobs to save and stop, at the second `launch` kills them."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        (sweep / STOP).touch()

    (sweep / STOP).unlink(missing_ok=True)
    # nohup has SIGHUP ignored, and so it stays; otherwise a terminal that closes would end the sweep and not its jobs.
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, receive) for number in _SIGNALS if number not in ignored}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(
    names: Sequence[str], sweep: Path, settings: Settings, received: Sequence[int], on_end: Callable[[str], None]
) -> None:
    """Run frozen jobs to their ends; each records its exit status, then `on_end` is called with its name."""
    import psutil

    task = {
        "names": list(names),
        "sweep": str(sweep),
        "option": settings.option,
        "overrides": list(settings.overrides),
        "launch_file": str(settings.launch_file),
        "gpu_shares": settings.gpu_shares,
    }
    command = [sys.executable, "-m", "think_as_locals.sweeps.launcher", json.dumps(task)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
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


def main(task: str) -> None:
    """Run in that process: make Hydra's launcher and have it run the jobs."""
    from hydra import initialize_config_dir
    from hydra._internal.callbacks import Callbacks
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext

    given = json.loads(task)
    sweep = Path(given["sweep"])
    folder = json.dumps(str(sweep / JOBS), ensure_ascii=False)
    ours = [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=${job}", "hydra.output_subdir=null"]
    config = compose_settings(given["option"], [*given["overrides"], *ours])
    with initialize_config_dir(str(ASSETS / "conf"), version_base="1.3"):
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks()),
            task_function=Runner(sweep, Path(given["launch_file"]), tuple(given["gpu_shares"])),
            config=config,
        )
        launcher.launch([[f"job={name}"] for name in given["names"]], initial_job_idx=0)


if __name__ == "__main__":
    main(sys.argv[1])

"""Jobs through one of Hydra's launchers, in a process of its own.

Terminals and clusters send their signals to the process that the person started (`watch`). That one makes the `.stop`
file; no launcher, and none of its workers, dies of a signal while it still has jobs to look after.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from think_as_locals.composition import ASSETS
from think_as_locals.sweeps.jobs import JOBS, STOP, ended
from think_as_locals.sweeps.runner import Runner
from think_as_locals.sweeps.settings import Settings, compose_settings

_POLL_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextmanager
def stop_signals(sweep: Path) -> Iterator[list[int]]:
    """Signals that came: the first asks all jobs to save and stop, `launch` ends them at the second."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        (sweep / STOP).touch()

    (sweep / STOP).unlink(missing_ok=True)
    # Under nohup a terminal that closes is to be ignored; else its sweep would die and leave its jobs behind.
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
    """Run jobs to their ends; how each ended stands in its folder.

    Args:
        names: Of the jobs, whose recipes are frozen.
        sweep: Folder of the sweep.
        settings: Which launcher, with which options.
        received: What `stop_signals` gave.
        on_end: Called with the name of each job as it ends.
    """
    task = {
        "names": list(names),
        "sweep": str(sweep),
        "option": settings.option,
        "overrides": list(settings.overrides),
        "launch_file": str(settings.launch_file),
        "gpus": settings.gpus,
    }
    words = [sys.executable, "-m", "think_as_locals.sweeps.launcher", json.dumps(task)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    running = list(names)
    try:
        while running and process.poll() is None and len(received) < 2:
            time.sleep(_POLL_S)
            for name in [name for name in running if ended(sweep / JOBS / name) is not None]:
                running.remove(name)
                on_end(name)
        if len(received) < 2:
            process.wait()
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a launcher behind."""
    import psutil

    if process.poll() is not None:
        return
    tree = psutil.Process(process.pid)
    for each in (*tree.children(recursive=True), tree):
        each.kill()
    process.wait()


def main(task: str) -> None:
    """What that process does."""
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
            task_function=Runner(sweep, Path(given["launch_file"]), tuple(given["gpus"])),
            config=config,
        )
        launcher.launch([[f"job={name}"] for name in given["names"]], initial_job_idx=0)


if __name__ == "__main__":
    main(sys.argv[1])

"""One job: `accelerate launch` of its frozen recipe, wherever a launcher of Hydra's calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from think_as_locals.composition import ASSETS, launch_values
from think_as_locals.sweeps.gpus import held
from think_as_locals.sweeps.jobs import JOBS, LOG, STOP, STOPPED, end, recipe_of

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs the job that its configuration names: the task function of a Hydra launcher.

    Whoever wants the sweep to stop makes its `.stop` file, which every machine of a cluster sees: what runs then saves
    and stops, and what has not started does not.

    Args:
        sweep: Folder of the sweep.
        launch_file: accelerate configuration.
        gpus: Shares of this machine's GPUs, of which a job has one to itself; without any, it has what there is.
    """

    sweep: Path
    launch_file: Path
    gpus: tuple[str, ...] = ()

    def __call__(self, config: Any) -> None:
        """Run it to its end, its output in its log."""
        folder = self.sweep / JOBS / config.job
        with held(self.gpus, folder.parent, self._stop) as own, ExitStack() as stack:
            if self._stop():
                return
            process = subprocess.Popen(  # noqa: S603
                self._command(recipe_of(folder)),
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context((folder / LOG).open("ab")),
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            )
            status, asked = self._wait(process)
        end(folder, STOPPED if asked and status else status)

    def _stop(self) -> bool:
        return (self.sweep / STOP).exists()

    def _command(self, recipe: Path) -> list[str]:
        """`launch/node.sh` is accelerate launch that ends in order and passes status 75 on."""
        several = launch_values(self.launch_file)["num_processes"] > 1
        port = ["--main_process_port", "0"] if several else []  # a free one: another job may have the usual
        script = str(ASSETS / "launch" / "node.sh")
        return ["bash", script, "--config_file", str(self.launch_file), *port, str(recipe)]

    def _wait(self, process: subprocess.Popen[bytes]) -> tuple[int, bool]:
        """Exit status, and whether the job was asked to stop."""
        asked = False
        while process.poll() is None:
            if not asked and self._stop():
                process.terminate()
                asked = True
            time.sleep(_POLL_S)
        return process.returncode, asked

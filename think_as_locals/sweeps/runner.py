"""`python -m think_as_locals.sweeps.runner`: the program that Hydra's launchers start for each job of a sweep."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig

from think_as_locals.config.compose import ASSETS
from think_as_locals.config.launch import find_launch, read_launch
from think_as_locals.runtime.files import read_json, write_json
from think_as_locals.runtime.terminal import progress_console

LOG, STATUS, STOP = "log.txt", "ended.json", ".stop"
STOPPED_STATUS = 75
POLL_S = 0.2


def read_status(job: Path) -> int | None:
    """Return the exit status of the job in a folder; `None` if it has not ended."""
    path = job / STATUS
    return int(read_json(path)["status"]) if path.is_file() else None


@hydra.main(version_base="1.3", config_path=str(ASSETS / "conf"), config_name="sweep/local")
def main(config: Any) -> None:
    """Run the job that a configuration names, in any process and on any node."""
    run_job(Path(HydraConfig.get().sweep.dir) / config.job)


def run_job(job: Path) -> None:
    """Run the frozen recipe in a job's folder to its end, and record its exit status.

    Each byte of the file `.stop` beside it, which all nodes see, is a signal to the sweep: at the first, jobs save and
    stop and no other starts; at the second, `launch/node.sh` ends its job at once.
    """
    stop = job.parent / STOP
    if stop.exists():
        return
    (recipe,) = job.glob("*.yaml")
    launch = yaml.safe_load(recipe.read_text(encoding="utf-8"))["run"]["launch"]
    # Any free port: another job may use the default.
    port = ["--main_process_port", "0"] if read_launch(launch).processes > 1 else []
    command = ["bash", str(ASSETS / "launch" / "node.sh"), "--config_file", str(find_launch(launch)), *port]
    command += ["-m", "think_as_locals", "run", str(recipe)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (job / LOG).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PATH": path}
        )
    sent = 0
    while process.poll() is None:
        if stop.exists() and stop.stat().st_size > sent:
            process.terminate()
            sent += 1
        time.sleep(POLL_S)
    status = STOPPED_STATUS if sent and process.returncode else process.returncode
    write_json(job / STATUS, {"status": status})  # last: a job with status 0 is not repeated
    progress_console().print(f"{job.name} ended with status {status}")


if __name__ == "__main__":
    main()

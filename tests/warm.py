"""A Python with preloaded modules: scripts and their child processes start without import time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

TRAINING = [
    "accelerate.commands.launch",
    "torch.distributed.run",
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "transformers.models.qwen3.modeling_qwen3",
    *("hydra.core.override_parser.overrides_parser", "pyarrow.parquet", "scipy.stats"),
    *map("sklearn.{}".format, ("feature_extraction.text", "linear_model", "model_selection")),
    *map("think_as_locals.{}".format, ("cli", "run", "machine.doctor", "train", "evaluate", "steer")),
]
"""What trainings and evaluations import, some of it only in their course."""
VLLM = [
    *("vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"),
    *("vllm.v1.executor.multiproc_executor", "vllm.model_executor.models.qwen2"),
    "vllm.model_executor.layers.quantization.online.base",
]


def make_warm_python(modules: list[str], importer: str, folder: Path) -> None:
    """Put a Python that has modules imported, by another Python, into a folder."""
    python, address = folder / "python", folder / "socket"
    program = str(Path(__file__).with_name("forked_python.py"))
    start = f'exec {sys.executable} -IS {program} start {address} "$@"'
    for name, script in {
        "python": f"#!/bin/sh\nPYTHON_EXEC={python} {start}\n",
        "worker": f"#!/bin/sh\n{start}\n",  # what it starts by sys.executable begins as any Python does
        "tal": f'#!/bin/sh\nexec {python} {Path(sys.executable).with_name("tal")} "$@"\n',
        "accelerate": f'#!/bin/sh\nshift\nexec {python} -m accelerate.commands.launch "$@"\n',
    }.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [importer, program, "serve", str(address), str(owner), *modules],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while not address.exists():
        assert server.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)


def processes_in(folder: Path) -> list[psutil.Process]:
    """The processes that run in a folder; those that a `warm_python` forked are no children of who started them."""

    def within(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ends while it is asked
            return Path(process.cwd()) == folder
        return False

    return [process for process in psutil.process_iter() if within(process)]

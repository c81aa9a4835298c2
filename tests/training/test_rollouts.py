"""The real engines on CPU: every weight sync is checked, a server that hangs or dies ends the run on all ranks."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, command, launch
from training.engine_process import WIDE
from training.small_grpo import tiny_trainer

pytestmark = pytest.mark.slow

KEY = "a secret of this test"


def run_checks(python: str, task: str, folder: Path, *arguments: str) -> None:
    """Run the checks of a task on two ranks."""
    words = ["--nproc_per_node", "2", str(Path(__file__).parent / "engine_process.py"), task, str(folder), *arguments]
    done = launch(python, command("torchrun"), *words, timeout=600, VLLM_API_KEY=KEY, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr


@pytest.fixture
def server(tmp_path: Path, warm_vllm: str) -> Iterator[tuple[Path, str]]:
    """A folder with a model, and the port of a server of it that is just starting."""
    tiny_trainer(tmp_path, *WIDE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"VLLM_API_KEY": KEY, "PORT": port, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    settings |= {"PYTHON": warm_vllm, "HF_HUB_OFFLINE": "1"}
    options = ["--dtype", "float32", "--enforce-eager", "--enable-lora", "--max-lora-rank", "16"]
    words = [str(ROOT / "launch" / "vllm_server.sh"), str(tmp_path / "model"), *options]
    with (tmp_path / "server.log").open("w") as log:
        environment = {**os.environ, **settings}
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log, text=True)
        try:
            yield tmp_path, port
        finally:
            process.kill()
            process.wait()


def test_a_server_that_is_checked_restarted_stopped_and_killed(server: tuple[Path, str], warm_vllm: str) -> None:
    folder, port = server
    run_checks(warm_vllm, "serve", folder, port)
    assert KEY not in (folder / "server.log").read_text()


def test_colocated_engines_of_two_processes(tmp_path: Path, warm_vllm: str) -> None:
    run_checks(warm_vllm, "colocate", tmp_path)

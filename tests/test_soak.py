"""A few killed or stopped runs; `make soak` does it 250 times and also kills vLLM servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, SMALL, launch

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_runs_survive_six_kills_and_two_stops(tmp_path: Path, warm_python: str) -> None:
    out = tmp_path / "soak.json"
    script = str(ROOT / "tests" / "benchmarks" / "soak.py")
    words = ["--parts", "sigkill", "sigterm", "--kills", "6", "--stops", "2", "--out", str(out)]
    done = launch(warm_python, script, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    soaked = json.loads(out.read_text())
    assert soaked["sigkill"]["kills"] == 6
    assert soaked["sigkill"]["while_saving"] >= 1
    assert soaked["sigterm"]["stops"] >= 1


def test_signalled_node_saves_and_second_launch_resumes(tmp_path: Path, warm_python: str) -> None:
    words = ["recipes/quickstart.yaml", *SMALL, *QUICK, "grpo.max_steps=10", "grpo.save_steps=100"]
    words += ["eval.every_steps=100", f"run.dir={tmp_path}", "run.name=node", "run.resume=auto"]
    warm = {"PATH": f"{Path(warm_python).parent}:{os.environ['PATH']}"}
    run, log = tmp_path / "node", tmp_path / "log"
    with log.open("w") as out:
        first = ["launch/node.sh", "--config_file", "launch/cpu_ddp.yaml", *words]
        environment = {**os.environ, **warm, "HF_HUB_OFFLINE": "1"}
        node = subprocess.Popen(first, cwd=ROOT, env=environment, stdout=out, stderr=out)
        until = time.monotonic() + 300
        while not (run / "completions").is_dir() and node.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        node.send_signal(signal.SIGUSR1)
        assert node.wait(timeout=120) == 75, log.read_text()
    assert "was asked to stop and has saved after step" in log.read_text()
    assert not (run / "model").exists()
    # The flags start what the file does.
    again = launch("launch/node.sh", "--multi_gpu", "--num_processes", "2", *words, **warm)
    assert again.returncode == 0, again.stderr
    assert "grpo continues from step" in again.stderr
    assert (run / "model" / "model.safetensors").is_file()

"""A few killed or stopped runs; `make soak` does it 250 times and also kills vLLM servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, SMALL, launch

pytestmark = pytest.mark.slow


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


SAVE_AND_EXIT_75 = 'echo "saved after step 3" > "$TAL_STOPPED"; exit 75'


@pytest.mark.parametrize(
    ("end", "signals", "status"),
    [
        *((SAVE_AND_EXIT_75, [number], 75) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)),
        ("exit 3", [signal.SIGTERM], 1),
        ("exit 0", [signal.SIGTERM], 0),
        ("trap - USR1", [signal.SIGINT, signal.SIGINT], 130),
        ("trap - USR1", [signal.SIGTERM, signal.SIGTERM], 143),
    ],
)
def test_node_exits_75_only_if_its_workers_saved(
    tmp_path: Path, end: str, signals: list[signal.Signals], status: int
) -> None:
    worker, launcher, heeds = tmp_path / "worker", tmp_path / "accelerate", tmp_path / "heeds"
    worker.write_text(f"#!/bin/bash\ntrap 'rm {heeds}; {end}' USR1\ntouch {heeds}\nwhile sleep 0.02; do :; done\n")
    # As our workers do, it unblocks the signal; its status is 1, whatever the worker's is.
    unblock = "import signal, subprocess\nsignal.pthread_sigmask(signal.SIG_SETMASK, [])\n"
    launcher.write_text(
        f"#!{sys.executable}\n{unblock}raise SystemExit(subprocess.run(['{worker}']).returncode and 1)\n"
    )
    for script in (worker, launcher):
        script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    words = ["env", "--default-signal=INT,HUP", "launch/node.sh", "RECIPE"]
    node = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    for place, number in enumerate(signals):
        while heeds.is_file() == bool(place) and time.monotonic() < until:
            time.sleep(0.02)
        os.killpg(node.pid, number)  # as a terminal does: to all that it has in the foreground
    _, message = node.communicate(timeout=60)
    assert node.returncode == status
    assert (b"saved after step 3" in message) == (status == 75)
    assert {path.name for path in tmp_path.iterdir()} == {"worker", "accelerate"}


def test_stopped_slurm_job_is_requeued(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for name, body in {
        "srun": f'echo "srun $*" >> {calls}; exit 75',
        "scontrol": f'echo "scontrol $*" >> {calls}; echo node1; echo node2',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NAME": "tal", "SLURM_JOB_ID": "7"}
    job["SLURM_CPUS_ON_NODE"] = "96"
    where = f"{tmp_path}:{os.environ['PATH']}"
    done = launch("launch/slurm.sh", "recipes/tal_grpo.yaml", "seed=3", PATH=where, **job)
    assert done.returncode == 75
    hosts, started, requeued = calls.read_text().replace("\\\n", "").splitlines()
    assert hosts == "scontrol show hostnames node[1-2]"
    assert started.endswith("node recipes/tal_grpo.yaml run.name=tal-7 run.resume=auto seed=3")
    assert requeued == "scontrol requeue 7"

"""The scripts in launch/, checked without a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, command, launch

SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_is_valid_short_and_sets_no_hyperparameters(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert len(text.splitlines()) <= 40
    assert os.access(script, os.X_OK)
    assert not re.findall(r"\b(?:grpo|sft|reward|data)\.\w+|learning_rate|batch_size", text)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    found = launch(command("shellcheck"), "--severity=style", str(script))
    assert found.returncode == 0, found.stdout


def environment_with(folder: Path, **programs: str) -> dict[str, str]:
    """An environment in which these scripts, written into a folder, are found first."""
    for name, script in programs.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


STUBS = {
    "scontrol": 'echo "scontrol $*" >> "$LOG"; printf "%s\\n" node-a node-b node-c',
    # The server answers once it was started.
    "curl": 'until grep -q vllm_server "$LOG"; do sleep 0.01; done; echo "curl $*" >> "$LOG"',
    "srun": """
        echo "srun HOST=${HOST:-} PORT=$PORT CPUS=$SRUN_CPUS_PER_TASK MASTER=$TAL_PORT $*" >> "$LOG"
        [[ $* == *vllm_server.sh* ]] && exec sleep 60; exit "$STATUS"
    """,
}


@pytest.mark.parametrize("status", [0, 1, 75])
def test_slurm_vllm_serves_on_one_node_and_requeues_stopped_runs(tmp_path: Path, status: int) -> None:
    log = tmp_path / "log.txt"
    environment = environment_with(tmp_path, **{name: f"#!/bin/bash\n{script}\n" for name, script in STUBS.items()})
    slurm = {"SLURM_JOB_NODELIST": "node-[a-c]", "SLURM_NNODES": "3", "SLURM_JOB_ID": "20007", "SLURM_JOB_NAME": "tal"}
    slurm["SLURM_CPUS_ON_NODE"] = "96"
    done = launch(
        *["launch/slurm_vllm.sh", "MODEL --dtype bfloat16", "recipes/tal_grpo.yaml", "seed=3"],
        timeout=30,
        **environment | slurm | {"LOG": str(log), "STATUS": str(status), "VLLM_API_KEY": "a-secret"},
    )
    assert done.returncode == status, done.stderr
    calls = log.read_text()
    assert "a-secret" not in calls + done.stdout + done.stderr
    serve = next(line for line in calls.splitlines() if "vllm_server.sh" in line)
    assert serve.startswith("srun HOST=0.0.0.0 PORT=30007 CPUS=96 MASTER=10007 --nodes 1 --ntasks 1 --nodelist node-a")
    assert serve.endswith("server MODEL --dtype bfloat16")
    assert "http://node-a:30007/health" in calls
    assert "srun HOST= PORT=30007 CPUS=96 MASTER=10007 --nodes 2 --ntasks 2 --exclude node-a" in calls
    assert "rollout=vllm_server rollout.url=http://node-a:30007 run.name=tal-20007 run.resume=auto seed=3" in calls
    assert ("scontrol requeue 20007" in calls) == (status == 75)


@pytest.mark.parametrize("script", ["slurm", "slurm_vllm"])
def test_slurm_job_is_exclusive_and_uses_no_fixed_port(script: str) -> None:
    text = (ROOT / "launch" / f"{script}.sh").read_text(encoding="utf-8")
    assert {"#SBATCH --exclusive", "#SBATCH --mem=0", "#SBATCH --signal=USR1@600"} <= set(text.splitlines())
    assert "29500" not in text
    assert "8000" not in text


WORKER = """
import os, signal, time
from think_as_locals.runtime.processes import on_signals
received = []
with on_signals(received.append):
    print("ready", flush=True)
    while not received:
        time.sleep(0.01)
    time.sleep(0.5)
open(os.environ["TAL_STOPPED"], "w").write(f"saved after {len(received)}\\n")
"""


@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_node_script_waits_for_workers_to_save_after_slurm_signal(tmp_path: Path, proctrack: str) -> None:
    """cgroup: the task alone gets it, linuxproc: every process of the step."""
    launcher = f"#!{sys.executable}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {WORKER!r}])\n"
    environment = environment_with(tmp_path, accelerate=launcher)
    with subprocess.Popen(
        [str(ROOT / "launch" / "node.sh"), "RECIPE"], stdout=-1, stderr=-1, text=True, env=environment, cwd=ROOT
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        tree = [script.pid]
        for process in tree if proctrack == "linuxproc" else ():
            tree += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        for process in tree:
            os.kill(process, signal.SIGUSR1)
        _, errors = script.communicate(timeout=30)
    assert script.returncode == 75, errors
    assert "saved after" in errors


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
    heeds = tmp_path / "heeds"
    worker = f"#!/bin/bash\ntrap 'rm {heeds}; {end}' USR1\ntouch {heeds}\nwhile sleep 0.02; do :; done\n"
    # As our workers do, it unblocks the signal; its status is 1, whatever the worker's is.
    unblock = "import signal, subprocess\nsignal.pthread_sigmask(signal.SIG_SETMASK, [])\n"
    launcher = f"#!{sys.executable}\n{unblock}raise SystemExit(subprocess.run(['worker']).returncode and 1)\n"
    environment = environment_with(tmp_path, worker=worker, accelerate=launcher) | {"TMPDIR": str(tmp_path)}
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
    srun = f'#!/bin/sh\necho "srun $*" >> {calls}; exit 75\n'
    scontrol = f'#!/bin/sh\necho "scontrol $*" >> {calls}; echo node1; echo node2\n'
    job = environment_with(tmp_path, srun=srun, scontrol=scontrol)
    job |= {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NAME": "tal", "SLURM_JOB_ID": "7"}
    done = launch("launch/slurm.sh", "recipes/tal_grpo.yaml", "seed=3", SLURM_CPUS_ON_NODE="96", **job)
    assert done.returncode == 75
    hosts, started, requeued = calls.read_text().replace("\\\n", "").splitlines()
    assert hosts == "scontrol show hostnames node[1-2]"
    assert started.endswith("node recipes/tal_grpo.yaml run.name=tal-7 run.resume=auto seed=3")
    assert requeued == "scontrol requeue 7"

"""The scripts in launch/, checked without a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
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
    for name, script in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log.txt"
    slurm = {"SLURM_JOB_NODELIST": "node-[a-c]", "SLURM_NNODES": "3", "SLURM_JOB_ID": "20007", "SLURM_JOB_NAME": "tal"}
    done = launch(
        *["launch/slurm_vllm.sh", "MODEL --dtype bfloat16", "recipes/tal_grpo.yaml", "seed=3"],
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        LOG=str(log),
        STATUS=str(status),
        VLLM_API_KEY="a-secret",
        SLURM_CPUS_ON_NODE="96",
        timeout=30,
        **slurm,
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
    launcher = tmp_path / "accelerate"
    launcher.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {WORKER!r}])\n"
    )
    launcher.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
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

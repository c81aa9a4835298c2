"""The scripts and accelerate configurations in launch/: sound before a cluster sees them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from conftest import ROOT, command, launch

SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
CONFIGURATIONS = sorted((ROOT / "launch").glob("*.yaml"))


def test_there_are_scripts_for_a_node_for_slurm_and_for_a_server() -> None:
    assert {path.stem for path in SCRIPTS} >= {"node", "slurm", "slurm_vllm", "vllm_server"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_parses_is_short_and_sets_no_hyperparameter(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert len(text.splitlines()) <= 40
    assert os.access(script, os.X_OK)
    assert not re.findall(r"\b(?:grpo|sft|reward|data)\.\w+|learning_rate|batch_size", text)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    found = launch(command("shellcheck"), "--severity=style", str(script))
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_accelerate_knows_every_key_of_a_configuration(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    loaded = load_config_from_file(str(path))  # ends with an error at a key that it does not know
    assert loaded.num_processes == yaml.safe_load(path.read_text(encoding="utf-8"))["num_processes"]


STUBS = {
    "scontrol": 'echo "scontrol $*" >> "$LOG"; printf "%s\\n" node-a node-b node-c',
    # The server answers once it was started.
    "curl": 'until grep -q vllm_server "$LOG"; do sleep 0.01; done; echo "curl $*" >> "$LOG"',
    "srun": 'echo "srun HOST=${HOST:-} $*" >> "$LOG"; [[ $* == *vllm_server.sh* ]] && exec sleep 60; exit "$STATUS"',
}


@pytest.mark.parametrize("status", [0, 1, 75])
def test_one_node_serves_the_others_train_and_a_stopped_run_is_queued_again(tmp_path: Path, status: int) -> None:
    for name, script in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log.txt"
    slurm = {"SLURM_JOB_NODELIST": "node-[a-c]", "SLURM_NNODES": "3", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "tal"}
    done = launch(
        *["launch/slurm_vllm.sh", "MODEL --dtype bfloat16", "recipes/tal_grpo.yaml", "seed=3"],
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        LOG=str(log),
        STATUS=str(status),
        VLLM_API_KEY="a-secret",
        timeout=30,
        **slurm,
    )
    assert done.returncode == status, done.stderr
    calls = log.read_text()
    assert "a-secret" not in calls + done.stdout + done.stderr
    serve = next(line for line in calls.splitlines() if "vllm_server.sh" in line)
    assert serve.startswith("srun HOST=0.0.0.0 --nodes 1 --ntasks 1 --nodelist node-a")
    assert serve.endswith("server MODEL --dtype bfloat16")
    assert "http://node-a:8000/health" in calls
    assert "srun HOST= --nodes 2 --ntasks 2 --exclude node-a" in calls
    assert "rollout=vllm_server rollout.urls=[http://node-a:8000] run.name=tal-7 run.resume=auto seed=3" in calls
    assert ("scontrol requeue 7" in calls) == (status == 75)


def test_a_server_without_a_key_or_a_node_to_train_on_is_no_job() -> None:
    words = ["launch/slurm_vllm.sh", "MODEL", "recipes/tal_grpo.yaml"]
    assert "export it before sbatch" in launch("env", "-u", "VLLM_API_KEY", *words).stderr

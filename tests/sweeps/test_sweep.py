"""Sweeps from the command line: real runs, a stop, a failing job, and submission to Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml
from conftest import QUICK, SMALL, command, launch
from warm import processes_in

from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.sweeps import runner
from think_as_locals.sweeps.runner import LOG, STATUS, STOP, read_status, run_job
from think_as_locals.sweeps.sweep import check_launcher, plan, sweep
from think_as_locals.types import ConfigError

QUICKSTART = "recipes/quickstart.yaml"
TINY = [*SMALL, *QUICK, "grpo.save_steps=100", "eval.every_steps=100"]
UNKNOWN_GROUP = "no_such_question"


def _start(python: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [command("tal", python), "run", "-m", QUICKSTART, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _until(pattern: str, folder: Path, count: int, sweeping: subprocess.Popen[str]) -> None:
    """Wait for so many files of a sweep."""
    while len(list(folder.glob(pattern))) < count:
        assert sweeping.poll() is None, sweeping.communicate()[0]
        time.sleep(0.1)


# --- before anything starts ---


def test_nothing_starts_of_an_invalid_or_stopped_sweep(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 of 2 combinations are invalid"):
        sweep(QUICKSTART, ["grpo.beta=0.1,-1", f"run.dir={tmp_path}", "run.name=mine"])
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / STOP).touch()
    run_job(tmp_path / "mine")
    assert not (tmp_path / "mine" / STATUS).exists()


def test_plan_lists_jobs_with_their_overrides(tmp_path: Path) -> None:
    planned = plan("ablations_quickstart", ["~variants.full", "grpo.beta=0.1", "seed=1,2", f"run.dir={tmp_path}"])
    fixed = f"~variants.full grpo.beta=0.1 run.dir={tmp_path}"
    assert [text for _, text in planned] == [
        f"{fixed} reward=paper_without_{part} seed={seed}" for part in ("gain", "correctness") for seed in (1, 2)
    ]
    assert planned[0][0].startswith("seed-1_variant-without_gain-")
    assert not list(tmp_path.iterdir())


NODE = """
trap 'echo stopping; signals=$((signals + 1))' TERM
while [ "${signals:-0}" -lt 2 ]; do sleep 0.05; done
exit 143
"""


def test_running_job_gets_a_signal_for_each_that_the_sweep_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (node := tmp_path / "launch" / "node.sh").parent.mkdir()
    node.write_text(NODE)
    monkeypatch.setattr(runner, "ASSETS", tmp_path)
    (job := tmp_path / "mine").mkdir()
    (job / "quickstart.yaml").write_text("run: {launch: single}")

    def stop_twice() -> None:
        for count in (1, 2):
            while not (job / LOG).is_file() or (job / LOG).read_text().count("stopping") < count - 1:
                time.sleep(0.05)
            time.sleep(0.2)  # until the trap is set
            with (tmp_path / STOP).open("ab") as file:
                file.write(b".")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stop_twice)
        run_job(job)
    assert (job / LOG).read_text().count("stopping") == 2
    assert read_status(job) == 75


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep=slrum", "no such option; did you mean 'slurm'?"),
        ("hydra.launcher.n_jbos=3", "n_jbos"),
        ("hydra/launcher=ray", r"pip install 'think-as-locals\[sweep\]'"),
    ],
)
def test_invalid_launcher_is_rejected_with_a_hint(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_launcher([override])


# --- four jobs: stopped, continued, one fails ---


@pytest.mark.slow
def test_stopped_sweep_resumes_and_tabulates_failed_jobs(tmp_path: Path, warm_python: str) -> None:
    groups = f"data.groups=[idiom_heavy_rain,gift_taboo],[{UNKNOWN_GROUP}]"  # first: the second job is a whole run too
    rest = [text for text in TINY if not text.startswith("data.groups")]
    words = [*rest, groups, "seed=1,2", f"run.dir={tmp_path}", "run.name=four"]
    folder = tmp_path / "four"

    first = _start(warm_python, tmp_path, *words)
    _until("*/report.html", folder, 1, first)  # a whole run, and the next one works
    _until("*/config.yaml", folder, 2, first)
    started = processes_in(tmp_path)
    names = {word for process in started for word in process.cmdline()}
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 75, output
    assert "repeat the command with run.name=four run.resume=auto" in output
    assert "accelerate.commands.launch" in names
    assert not psutil.wait_procs(started, timeout=10)[1]
    before = json.loads((folder / "sweep.json").read_text())
    whole = next(row["job"] for row in before["judges"] if row["state"] == "done")
    made = (folder / whole / "report.html").stat().st_mtime_ns

    second = _start(warm_python, tmp_path, *words, "run.resume=auto", "sweep=joblib")
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 1, output
    assert "1 of 4 jobs are done already" in output
    assert (folder / whole / "report.html").stat().st_mtime_ns == made

    ended = json.loads((folder / "sweep.json").read_text())
    rows = [row for row in ended["judges"] if row["state"]]
    assert [row["state"] for row in rows] == ["done", "done", "failed", "failed"]
    found = [row["validation"]["accuracy"] for row in rows[:2]]
    assert found == sorted(found, reverse=True)
    table = (folder / "sweep.md").read_text().replace("\\", "")
    for row in rows:
        assert all(setting in table for setting in row["combination"])
        frozen = yaml.safe_load((folder / "jobs" / row["job"] / "quickstart.yaml").read_text())
        assert row["combination"] == [f"data.groups=[{','.join(frozen['data']['groups'])}]", f"seed={frozen['seed']}"]
        if row["state"] == "done":
            tested = json.loads(RunFolder(folder / row["job"]).evaluation("test", 2).read_text())
            assert {key: row[key] for key in ("step", "accuracy", "n")} == {
                key: tested[key] for key in ("step", "accuracy", "n")
            }
            assert row["against_base"]["n"] == row["n"]
        else:
            assert row["accuracy"] is None
            log = folder / "jobs" / row["job"] / "log.txt"
            assert UNKNOWN_GROUP in log.read_text()
            assert str(log) in output
    assert table.count("| done ") == 2
    assert output.count(" ended with status ") == 3


# --- Slurm: what sbatch gets, and that a job comes of it ---

SACCT = """#!/bin/bash
# A job that has ended without a result has failed.
[ ! -e "$STUB/ended" ] || printf 'JobID|State|NodeList\\n7|FAILED|node\\n'
"""
SBATCH = """#!/bin/bash
# One Slurm job: the script runs with Slurm's variables.
cp "$1" "$STUB/submitted.sh"
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=node SLURM_NTASKS=1
export SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
{ bash "$1" > "$STUB/output" 2>&1; touch "$STUB/ended"; } > /dev/null 2>&1 &
echo "Submitted batch job 7"
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do case $1 in --output|--error) shift 2 ;; *) shift ;; esac; done
exec "$@"
"""


@pytest.mark.slow
def test_slurm_job_is_submitted_with_launcher_settings(tmp_path: Path, warm_python: str) -> None:
    for name, script in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": "#!/bin/bash\n"}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    done = launch(
        *[command("tal", warm_python), "run", "-m", QUICKSTART, "data=jsonl", "data.path=nowhere.jsonl", "sweep=slurm"],
        *["hydra.launcher.partition=gpu", f"run.dir={tmp_path}", "run.name=slurm", "--json"],
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        STUB=str(tmp_path),
    )
    assert done.returncode == 1, done.stdout + done.stderr + (tmp_path / "output").read_text()
    submitted = (tmp_path / "submitted.sh").read_text()
    for line in ("--partition=gpu", "--gpus-per-node=8", "--time=1440", "--job-name=tal"):
        assert f"#SBATCH {line}" in submitted
    (row,) = json.loads(done.stdout)["judges"]
    assert row["state"] == "failed", (tmp_path / "output").read_text()
    assert "nowhere.jsonl does not exist" in (tmp_path / "slurm" / "jobs" / row["job"] / "log.txt").read_text()

"""Sweeps from the command line: real runs, a stop, a failing job, and submission to Slurm."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import yaml
from conftest import QUICK, SMALL, command, launch
from rich.console import Console
from warm import processes_in

from think_as_locals.cli import main
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.sweeps.jobs import STATUS
from think_as_locals.sweeps.settings import load_settings, parse
from think_as_locals.sweeps.sweep import Sweep, plan, print_results, read_job_results, sweep, write_summary
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


def test_no_job_starts_if_one_combination_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 of 2 combinations are invalid"):
        sweep(QUICKSTART, ["grpo.beta=0.1,-1", f"run.dir={tmp_path}", "run.name=mine"])
    assert not list(tmp_path.iterdir())


def test_plan_lists_jobs_with_their_overrides(tmp_path: Path) -> None:
    planned = plan("ablations_quickstart", ["~variants.full", "grpo.beta=0.1", "seed=1,2", f"run.dir={tmp_path}"])
    fixed = f"~variants.full grpo.beta=0.1 run.dir={tmp_path}"
    assert [text for _, text in planned] == [
        f"{fixed} reward=paper_without_{part} seed={seed}" for part in ("gain", "correctness") for seed in (1, 2)
    ]
    assert planned[0][0].startswith("seed-1_variant-without_gain-")
    search = ["sweep=optuna", "sweep.num_trials=7", "grpo.learning_rate=interval(1e-5,1e-4)"]
    assert plan(QUICKSTART, search) == [("trials", "7, proposed by optuna")]
    assert not list(tmp_path.iterdir())


def test_sweep_rejects_an_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match=r"choose another run\.name, or continue it"):
        sweep(QUICKSTART, [f"run.dir={tmp_path}", "run.name=mine"])
    with pytest.raises(ConfigError, match="is not the folder of a sweep"):
        sweep(QUICKSTART, [f"run.dir={tmp_path}", "run.name=mine", "run.resume=auto"])


def test_sweep_rejects_a_recipe_that_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evaluates reward models and trains no judge"):
        sweep("recipes/carb.yaml", ["seed=1,2", f"run.dir={tmp_path}"])


def test_sweep_option_without_the_flag_exits_2_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tal", "run", QUICKSTART, "sweep=joblib"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "tal run -m recipes/quickstart.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE])
def test_closed_terminal_does_not_fail_a_job(tmp_path: Path, number: int) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(number, "gone")

    this = Sweep(QUICKSTART, parse(["seed=1"]), load_settings([]), tmp_path, [], -1, Console(file=Gone()))
    this.combinations["mine"] = ("seed=1",)
    (tmp_path / "jobs" / "mine").mkdir(parents=True)
    this.print_end("mine")


def test_job_of_a_sweep_that_varies_nothing_is_called_by_its_name(tmp_path: Path) -> None:
    console = Console(file=(screen := io.StringIO()))
    this = Sweep(QUICKSTART, parse([]), load_settings([]), tmp_path, [], -1, console, {"mine": ()})
    (tmp_path / "jobs" / "mine").mkdir(parents=True)
    (tmp_path / "jobs" / "mine" / "ended.json").write_text('{"status": 1}')
    this.print_end("mine")
    print_results(console, tmp_path, *read_job_results(tmp_path, this.combinations, stop_requested=False))
    assert "failed  mine" in screen.getvalue()
    assert "failed: mine: " in screen.getvalue()


# --- the table ---

NAMES = {"low": ("seed=1",), "high": ("seed=2",), "broken": ("seed=<3>",), "stopped": ("seed=4",), "lost": ("seed=5",)}


def _jobs(folder: Path, flips: int = 8, sets: Sequence[str] = ("test",)) -> Path:
    """Jobs measured twice, of which one failed and one was stopped afterwards, and one without any record."""
    for name, accuracy, status in (("low", 0.3, 0), ("high", 0.8, 0), ("broken", 0.9, 3), ("stopped", 0.5, 75)):
        for by_set, step, found in ((v, s, f) for v in sets for s, f in ((2, 0.1), (10, accuracy))):
            found = 1 - found if by_set == "test" and len(sets) > 1 else found  # what is best there is worst here
            of_flips = {"n": flips, "accuracy": found, "ci95": [found - 0.1, found + 0.1]} if flips else {"n": 0}
            part = {"n": 16, "accuracy": found / 2, "ci95": [0.0, found]}
            for strict in (part, of_flips):
                strict["verdict_only"] = {"n": strict["n"], "accuracy": 0.95}
            part |= {"step": step, "flips": of_flips}
            path = RunFolder(folder / name).evaluation(by_set, step)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(part))
        (folder / "jobs" / name).mkdir(parents=True)
        (folder / "jobs" / name / STATUS).write_text(json.dumps({"status": status}))
    return folder


@pytest.mark.parametrize(
    ("sets", "flips", "best", "test"),
    [
        (["test"], 8, (0.8, 8, 10), 0.8),
        (["test"], 0, (0.4, 16, 10), 0.4),
        (["test", "validation"], 8, (0.8, 8, 10), 0.2),
        (["test", "validation"], 0, (0.4, 16, 10), 0.1),
    ],
)
def test_jobs_are_ranked_by_validation_accuracy_with_failures_last(
    tmp_path: Path, sets: list[str], flips: int, best: tuple[float, int, int], test: float
) -> None:
    found, rows = read_job_results(_jobs(tmp_path, flips, sets), NAMES, stop_requested=False)
    assert (found.set, found.flips) == (sets[-1], flips > 0)
    assert rows[0].test is not None
    assert rows[0].test["accuracy"] == pytest.approx(test)
    assert [row.name for row in rows] == ["high", "low", "stopped", "broken", "lost"]
    assert [row.status for row in rows] == [0, 0, 75, 3, None]
    assert [row.state for row in rows] == ["done", "done", "stopped", "failed", "failed"]
    assert rows[0].evaluated is not None
    assert tuple(rows[0].evaluated[key] for key in ("accuracy", "n", "step")) == best


def test_files_and_terminal_show_the_same_results(tmp_path: Path) -> None:
    metric, rows = read_job_results(_jobs(tmp_path), NAMES, stop_requested=True)
    table, caption = write_summary(tmp_path, metric, rows)
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert [job["name"] for job in written["jobs"]] == [row.name for row in rows]
    measured = {"accuracy": 0.8, "ci95": [0.8 - 0.1, 0.8 + 0.1], "n": 8, "step": 10, "trained_on": False}
    assert written["jobs"][0]["evaluated"] == measured | {"verdict_only": {"n": 8, "accuracy": 0.95}}
    assert "†" not in caption
    assert written["jobs"][-1]["log"] == "jobs/broken/log.txt"
    text = (tmp_path / "sweep.md").read_text()
    assert (
        "| seed=2 | 80.0 [70.0, 90.0], n 8 | 95.0 | 80.0 [70.0, 90.0], n 8 | 95.0 | 10 | done | jobs/high/log.txt |"
        in text
    )
    assert "| seed=&lt;3&gt; | 90.0 " in text
    assert "failed, status 3" in text
    console = Console(width=160, file=io.StringIO())
    with console.capture() as output:
        console.print(table.terminal("several", caption))
    lines = [line for line in output.get().splitlines() if "seed=" in line]
    assert [line.split()[1] for line in lines] == [row.combination[0] for row in rows]


def test_job_evaluated_on_its_training_items_is_marked(tmp_path: Path) -> None:
    last = RunFolder(_jobs(tmp_path) / "low").evaluation("test", 10)
    last.write_text(json.dumps({**json.loads(last.read_text()), "trained_on": {"items": 3, "n": 16}}))
    _, caption = write_summary(tmp_path, *read_job_results(tmp_path, NAMES, stop_requested=False))
    assert caption.endswith("† The judge was trained on some of these items.")
    assert re.findall(r"seed=\d \| († \S+)", (tmp_path / "sweep.md").read_text()) == ["† 30.0"]


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
    assert "continue it with run.name=four run.resume=auto" in output
    assert "accelerate.commands.launch" in names
    assert not psutil.wait_procs(started, timeout=10)[1]
    before = json.loads((folder / "sweep.json").read_text())
    whole = next(job["name"] for job in before["jobs"] if job["state"] == "done")
    made = (folder / whole / "report.html").stat().st_mtime_ns

    second = _start(warm_python, tmp_path, *words, "run.resume=auto", "sweep=joblib")
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 1, output
    assert "1 of 4 jobs are done already" in output
    assert (folder / whole / "report.html").stat().st_mtime_ns == made

    ended = json.loads((folder / "sweep.json").read_text())
    assert ended["metric"] == {"set": "validation", "flips": ended["metric"]["flips"]}
    assert [job["state"] for job in ended["jobs"]] == ["done", "done", "failed", "failed"]
    found = [job["evaluated"]["accuracy"] for job in ended["jobs"][:2]]
    assert found == sorted(found, reverse=True)
    for job in ended["jobs"]:
        assert all(setting in output for setting in job["combination"])
        frozen = yaml.safe_load((folder / "jobs" / job["name"] / "quickstart.yaml").read_text())
        assert job["combination"] == [f"data.groups=[{','.join(frozen['data']['groups'])}]", f"seed={frozen['seed']}"]
        if job["state"] == "done":
            for by_set, key in (("validation", "evaluated"), ("test", "test")):
                run = json.loads(RunFolder(folder / job["name"]).evaluation(by_set, 2).read_text())
                part = run["flips"] if ended["metric"]["flips"] else run
                keys = ("accuracy", "ci95", "n", "verdict_only")
                assert job[key] == {"step": 2, "trained_on": False, **{k: part[k] for k in keys}}
        else:
            assert job["evaluated"] is None
            assert UNKNOWN_GROUP in (folder / job["log"]).read_text()
            assert str(folder / job["log"]) in output
    assert (folder / "sweep.md").read_text().count("| done |") == 2


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
        *["sweep.launch=single", "hydra.launcher.partition=gpu", f"run.dir={tmp_path}", "run.name=slurm", "--json"],
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        STUB=str(tmp_path),
    )
    assert done.returncode == 1, done.stdout + done.stderr + (tmp_path / "output").read_text()
    submitted = (tmp_path / "submitted.sh").read_text()
    for line in ("--partition=gpu", "--gpus-per-node=8", "--time=1440", "--job-name=tal"):
        assert f"#SBATCH {line}" in submitted
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["state"], job["status"]) == ("failed", 1), (tmp_path / "output").read_text()
    assert "nowhere.jsonl does not exist" in (tmp_path / "slurm" / job["log"]).read_text()

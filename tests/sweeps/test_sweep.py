"""Sweeps: the grid, faults before anything starts, real runs, a stop, a failing job, Slurm, and the table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from conftest import QUICK, SMALL, command, launch
from evaluation.judged import flip_items, judge_all, measure
from hypothesis import given, settings
from hypothesis import strategies as st
from warm import processes_in

from think_as_locals.config.checks import load_recipe
from think_as_locals.run import start
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.sweeps import runner
from think_as_locals.sweeps.runner import LOG, STATUS, STOP, read_status, run_job
from think_as_locals.sweeps.sweep import (
    Job,
    check_launcher,
    freeze,
    job_name,
    make_jobs,
    plan,
    split_values,
    sweep,
    write_table,
)
from think_as_locals.types import ConfigError

QUICKSTART = "recipes/quickstart.yaml"
LEARNING_RATES, SEEDS = ["grpo.learning_rate=1e-06", "grpo.learning_rate=5e-06"], ["seed=1", "seed=2", "seed=3"]
SWEEPS = {
    "ablations": ["full", "without_gain", "without_correctness"],
    "ablations_quickstart": ["full", "without_gain", "without_correctness"],
    "methods": ["ours", "rm_r1", "j1"],
    "methods_quickstart": ["ours", "rm_r1", "j1"],
    "culture_shown": ["stated", "inferred", "hidden"],
    "culture_shown_quickstart": ["stated", "inferred", "hidden"],
    "rubric_language": ["local", "english"],
}


@cache
def jobs_of(recipe: str) -> list[Job]:
    return make_jobs(f"recipes/{recipe}.yaml", [])


@settings(max_examples=50)
@given(st.lists(st.text(min_size=1, max_size=99), max_size=4))
def test_a_job_name_is_a_valid_run_name_for_any_values(texts: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", job_name(tuple(f"data.path={text}" for text in texts)))


def test_job_names_are_unique_and_independent_of_override_order() -> None:
    names = {job_name((f"data.path={path}", f"seed={seed}")) for path in ("a/b", "a b", "a-b") for seed in (1, 2)}
    assert len(names) == 6
    # Or a sweep that continues with its overrides in another order would repeat what is done.
    assert job_name(("seed=1", "grpo.beta=0")) == job_name(("grpo.beta=0", "seed=1"))


@pytest.mark.parametrize(
    ("overrides", "shared", "axes"),
    [
        (["seed=1", "data.path='a,b'"], ["seed=1", "data.path='a,b'"], []),
        (["grpo.learning_rate=1e-6,5e-6", "seed=range(1,4)", "grpo.beta=0"], ["grpo.beta=0"], [LEARNING_RATES, SEEDS]),
        (["data.languages=[en],[de,th]"], [], [["data.languages=[en]", "data.languages=[de,th]"]]),
        (["reward=choice(j1,paper)"], [], [["reward=j1", "reward=paper"]]),
    ],
)
def test_values_follow_hydras_grammar(overrides: list[str], shared: list[str], axes: list[list[str]]) -> None:
    assert split_values(overrides) == (shared, axes)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=1,2", "seed=3"], "seed: a key that varies is given once"),
        (["run.name=a,b"], "a sweep has one run.name"),
        (["variant=full,without_gain"], "each variant of a recipe is run; leave one out by ~variants.NAME"),
        (["grpo.beta=interval(0,1)"], r"grpo.beta=interval\(0,1\): .*expected KEY=A,B"),
        (["grpo.beta=choice("], "grpo.beta"),
        (["seed=range(3,1)"], r"seed=range\(3,1\): holds no value"),
    ],
)
def test_invalid_swept_values_are_rejected(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_values(overrides)


def test_error_lists_every_invalid_combination() -> None:
    with pytest.raises(ConfigError) as caught:
        make_jobs(QUICKSTART, ["grpo.beta=0.1,-1", "seed=1,2", "eval.evry_steps=3"])
    message = str(caught.value)
    assert message.startswith("4 of 4 combinations are invalid, none was started:")
    assert message.count("did you mean 'eval.every_steps'?") == 4
    assert message.count("grpo.beta: ") == 2
    assert "\ngrpo.beta=-1 seed=2\n" in message
    with pytest.raises(ConfigError, match="evaluates reward models and trains no judge"):
        make_jobs("recipes/carb.yaml", ["seed=1,2"])
    with pytest.raises(ConfigError, match="nodes_zero3 is for several machines"):
        make_jobs(QUICKSTART, ["run.launch=nodes_zero3"])


def test_frozen_recipe_has_the_values_of_its_job(tmp_path: Path) -> None:
    found = make_jobs(QUICKSTART, ["seed=1,2", "data.languages=[en,de]", "run.launch=cpu_ddp"])
    for seed, job in enumerate(found, start=1):
        frozen = load_recipe(freeze(job, tmp_path))
        run = {"name": job.name, "dir": str(tmp_path), "resume": "auto", "launch": "cpu_ddp"}
        assert frozen.run.model_dump() == run
        assert frozen.model_copy(update={"run": job.config.run}) == job.config
        assert frozen.seed == seed


# --- variants ---


@pytest.mark.parametrize("recipe", SWEEPS)
def test_variants_become_jobs_with_identical_data_and_budget(recipe: str, tmp_path: Path) -> None:
    found = jobs_of(recipe)
    assert [job.combination for job in found] == [(f"variant={name}",) for name in SWEEPS[recipe]]
    same = {
        repr((job.config.data, job.config.grpo, job.config.rollout, job.config.model, job.config.sft)) for job in found
    }
    assert len(same) == 1
    assert len({job.config.reward.weights["structure"] for job in found}) == 1
    assert len({repr((job.config.reward, job.config.prompt)) for job in found}) == len(found)
    assert yaml.safe_load(freeze(found[0], tmp_path).read_text(encoding="utf-8"))["variants"] == {}


def test_variants_are_crossed_with_other_swept_values() -> None:
    found = make_jobs("rubric_language", ["seed=1,2", "model=qwen3_8b"])
    expected = [*product(SWEEPS["rubric_language"], (1, 2))]
    assert [job.combination for job in found] == [(f"variant={name}", f"seed={seed}") for name, seed in expected]
    assert [(job.config.prompt.rubric_language, job.config.seed) for job in found] == [
        ("item", 1), ("item", 2), ("en", 1), ("en", 2),
    ]  # fmt: skip


def test_recipe_with_variants_cannot_start_as_a_single_run() -> None:
    with pytest.raises(ConfigError, match=r"methods is a sweep over variants \(ours, rm_r1, j1\): tal run -m"):
        start("recipes/methods.yaml", [])


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
    launcher = ["sweep=joblib", "hydra.launcher.n_jobs=4"]  # of no job
    planned = plan(
        "ablations_quickstart", ["~variants.full", "grpo.beta=0.1", "seed=1,2", f"run.dir={tmp_path}", *launcher]
    )
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


# --- the table: best first, each job paired by item with its base and with the first of its like ---


ITEMS = flip_items(groups=8)
Right = Callable[[int], float | None]


def measured(folder: Path, job: Job, before: Right, after: Right) -> None:
    for step, right in ((0, before), (5, after)):
        measure(folder / job.name, step, judge_all(right, ITEMS), model="judge")


def judges(folder: Path, jobs: list[Job], **states: Any) -> list[dict[str, Any]]:
    table, _ = write_table(folder, jobs, {job.name: states.get(job.label, "done") for job in jobs})
    found: list[dict[str, Any]] = json.loads((folder / "sweep.json").read_text())["judges"]
    assert [*table["job"]] == [row["name"] for row in found]
    return found


def test_jobs_are_compared_per_item_with_base_and_first_best_first(tmp_path: Path) -> None:
    found = jobs_of("ablations")
    for job, after in zip(found, (lambda i: float(i % 2), lambda i: float(i % 4 > 0), lambda _: 0.0), strict=True):
        measured(tmp_path, job, lambda i: None if i % 2 else 0.0, after)
    rows = judges(tmp_path, found)
    assert [row["name"] for row in rows] == ["base of full", "without_gain", "full", "without_correctness"]
    assert [(row["step"], row["n"], row["accuracy"]) for row in rows] == [
        (0, 96, 0.0), (5, 96, 0.75), (5, 96, 0.5), (5, 96, 0.0),
    ]  # fmt: skip
    against = [(row["against_base"] or {}).get("difference") for row in rows]
    assert against == [None, 0.75, 0.5, 0.0]
    assert [(row["against_first"] or {}).get("difference") for row in rows] == [None, 0.25, None, -0.5]
    assert rows[1]["against_base"]["p_holm"] < 0.001 < rows[3]["against_base"]["p_holm"] == 1.0
    assert rows[0]["parse_failure"] == 0.5
    assert "without\\_gain" in (tmp_path / "sweep.md").read_text()


def test_jobs_of_one_seed_are_compared_and_validation_items_rank_them(tmp_path: Path) -> None:
    found = make_jobs("quickstart", ["grpo.beta=0.1,0.2", "seed=1,2"])
    for job, accuracy in zip(found, (0.3, 0.4, 0.5, 0.6), strict=True):
        measured(tmp_path, job, lambda _: 0.0, lambda _: 1.0)
        file = RunFolder(tmp_path / job.name).evaluation("validation", 5)
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"step": 5, "n": 9, "accuracy": accuracy, "ci95": [0.0, 1.0]}))
    rows = judges(tmp_path, found, **{"grpo.beta=0.2 seed=2": "failed"})
    tested = RunFolder(tmp_path / found[0].name).evaluation("test", 5)
    assert [row["name"] for row in rows[-4:]] == [
        "grpo.beta=0.2 seed=1", "grpo.beta=0.1 seed=2", "grpo.beta=0.1 seed=1", "grpo.beta=0.2 seed=2",
    ]  # fmt: skip
    assert [bool(row["against_first"]) for row in rows[-4:]] == [True, False, False, True]
    assert (rows[-1]["state"], rows[-1]["validation"]["accuracy"]) == ("failed", 0.6)
    assert "†" not in (tmp_path / "sweep.md").read_text()
    tested.write_text(json.dumps({**json.loads(tested.read_text()), "trained_on": {"items": 3, "n": 96}}))
    judges(tmp_path, found)
    assert (tmp_path / "sweep.md").read_text().count("†") == 2  # the judge's figure, and the caption


def test_adapter_that_a_cold_start_trains_has_its_own_base(tmp_path: Path) -> None:
    whole, adapter = make_jobs("pretrained", ["lora=none,rank16", "model.path=m", "data.path=d"])
    measured(tmp_path, whole, lambda _: 0.0, lambda _: 1.0)
    measured(tmp_path, adapter, lambda _: 1.0, lambda _: 1.0)
    rows = judges(tmp_path, [whole, adapter])
    assert [row["against_base"]["difference"] for row in rows[2:]] == [1.0, 0.0]


def test_each_job_is_compared_with_its_own_model_before_training(tmp_path: Path) -> None:
    found = make_jobs(QUICKSTART, ["grpo.beta=0.1,0.2,0.3"])
    for job, before in zip(found, (0.0, 1.0, 0.0), strict=True):  # the cold start of the second ended elsewhere
        measured(tmp_path, job, lambda _, before=before: before, lambda _: 1.0)
    rows = judges(tmp_path, found)
    assert [row["name"] for row in rows[:2]] == ["base of grpo.beta=0.1", "base of grpo.beta=0.2"]
    assert [row["against_base"]["difference"] for row in rows[2:]] == [1.0, 0.0, 1.0]


def test_each_prompt_has_its_own_base_and_unmeasured_jobs_have_no_figures(tmp_path: Path) -> None:
    ours, rm_r1, j1 = jobs_of("methods")
    measured(tmp_path, ours, lambda _: 0.0, lambda _: 1.0)
    measured(tmp_path, rm_r1, lambda i: float(i % 2), lambda _: 1.0)
    RunFolder(tmp_path / j1.name).carb_dir.mkdir(parents=True)
    rows = judges(tmp_path, [ours, rm_r1, j1], j1="failed")
    assert [row["name"] for row in rows] == ["base of ours", "base of rm_r1", "ours", "rm_r1", "j1"]
    assert [row["against_base"]["difference"] for row in rows[2:4]] == [1.0, 0.5]
    assert rows[3]["against_first"]["difference"] == 0.0
    assert (rows[4]["accuracy"], rows[4]["state"]) == (None, "failed")

"""The jobs of a sweep: validation, frozen recipes, GPU assignment, and stopping by signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warm import processes_in

from think_as_locals.config.checks import load_recipe
from think_as_locals.runtime.run_folder import lock_run_dir
from think_as_locals.sweeps.jobs import (
    JOBS,
    LOG,
    STOP,
    Runner,
    freeze,
    job_name,
    job_state,
    make_jobs,
    read_status,
    stop_signals,
)
from think_as_locals.sweeps.settings import parse
from think_as_locals.types import ConfigError

QUICKSTART = "recipes/quickstart.yaml"


@settings(max_examples=50)
@given(st.lists(st.text(min_size=1, max_size=99), max_size=4))
def test_a_job_name_is_a_valid_run_name_for_any_values(texts: list[str]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", job_name(tuple(f"data.path={text}" for text in texts)))


def test_job_names_are_unique_and_independent_of_override_order() -> None:
    names = {job_name((f"data.path={path}", f"seed={seed}")) for path in ("a/b", "a b", "a-b") for seed in (1, 2)}
    assert len(names) == 6
    many = {job_name((f"data.path={'x' * 60}{number}",)) for number in range(20_000)}
    assert len(many) == 20_000
    # Or a sweep that continues with its overrides in another order would repeat what is done.
    assert job_name(("seed=1", "grpo.beta=0")) == job_name(("grpo.beta=0", "seed=1"))


def test_error_lists_every_invalid_combination() -> None:
    space = parse(["grpo.beta=0.1,-1", "seed=1,2", "eval.evry_steps=3"])
    with pytest.raises(ConfigError) as caught:
        make_jobs(QUICKSTART, space, space.combinations("grid"))
    message = str(caught.value)
    assert message.startswith("4 of 4 combinations are invalid, none was started:")
    assert message.count("did you mean 'eval.every_steps'?") == 4
    assert message.count("grpo.beta: got -1") == 2
    assert "\ngrpo.beta=-1 seed=2\n" in message


def test_frozen_recipe_reproduces_the_config_and_can_be_launched(tmp_path: Path) -> None:
    space = parse(["seed=1,2", "data.languages=[en,de]", "grpo.learning_rate=1e-6"])
    jobs = make_jobs(QUICKSTART, space, space.combinations("grid"))
    for seed, job in enumerate(jobs, start=1):
        path = freeze(job, tmp_path)
        assert path == tmp_path / "jobs" / job.name / "quickstart.yaml"
        frozen = load_recipe(path)
        assert frozen.run.model_dump() == {"name": job.name, "dir": str(tmp_path), "resume": "auto", "launch": None}
        assert frozen.model_copy(update={"run": job.config.run}) == job.config
        assert frozen.seed == seed
        compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize(
    "value", ["two\nlines", "a bell \x07", "\u2028", "\u202e", "a # b", "it's", "${recipe}", "| a"]
)
def test_frozen_recipe_preserves_special_characters(tmp_path: Path, value: str) -> None:
    space = parse(["data=jsonl", f'data.path="{value}",other'])
    (job,) = make_jobs(QUICKSTART, space, space.combinations("grid")[:1])
    frozen = load_recipe(path := freeze(job, tmp_path))
    assert frozen.data.path == value.replace("${recipe}", "quickstart")
    compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("value", ["it'''s", r"\${seed}"])
def test_freeze_rejects_values_that_a_recipe_cannot_represent(tmp_path: Path, value: str) -> None:
    (job,) = make_jobs(QUICKSTART, parse(["data=jsonl", f'data.path="{value}"']), [()])
    with pytest.raises(ConfigError, match="which a recipe cannot hold literally"):
        freeze(job, tmp_path)
    assert not list((tmp_path / "jobs" / job.name).iterdir())


@pytest.mark.parametrize(
    ("status", "stop_requested", "state"),
    [
        (0, False, "done"),
        (75, False, "stopped"),
        (1, False, "failed"),
        (None, False, "failed"),
        (None, True, "stopped"),
    ],
)
def test_the_state_of_a_job_follows_from_its_exit_status(status: int | None, stop_requested: bool, state: str) -> None:
    assert job_state(status, stop_requested) == state


# --- GPUs ---

SCRIPT = """
echo "$0 has $CUDA_VISIBLE_DEVICES"
mkdir "$1/gpu-$CUDA_VISIBLE_DEVICES" || exit 3
sleep 0.3
rmdir "$1/gpu-$CUDA_VISIBLE_DEVICES"
"""


def test_concurrent_jobs_never_share_gpus_and_all_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "_command", lambda self, recipe: ["bash", "-c", SCRIPT, recipe.stem, str(tmp_path)])
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        (tmp_path / JOBS / name).mkdir(parents=True)
        (tmp_path / JOBS / name / f"{name}.yaml").touch()
    runner = Runner(tmp_path, tmp_path, ("0", "1"))
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda name: runner(SimpleNamespace(job=name)), names))
    assert [read_status(tmp_path / JOBS / name) for name in names] == [0] * 5
    used = {(tmp_path / JOBS / name / LOG).read_text().split()[-1] for name in names}
    assert used == {"0", "1"}


def test_waiting_job_does_not_start_after_the_sweep_stops(tmp_path: Path) -> None:
    (tmp_path / JOBS / "mine").mkdir(parents=True)
    (tmp_path / STOP).touch()
    Runner(tmp_path, tmp_path, ("0",))(SimpleNamespace(job="mine"))
    assert read_status(tmp_path / JOBS / "mine") is None


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_asks_jobs_to_stop_and_the_previous_handler_is_restored(
    tmp_path: Path, number: signal.Signals
) -> None:
    def handler(*_: object) -> None: ...

    before = signal.signal(number, handler)  # this test may itself run under nohup
    try:
        with stop_signals(tmp_path) as received:
            assert not (tmp_path / STOP).exists()
            os.kill(os.getpid(), number)
            assert received == [number]
            assert (tmp_path / STOP).exists()
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)


def test_ignored_sighup_does_not_stop_a_sweep(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(tmp_path) as received:
            os.kill(os.getpid(), signal.SIGHUP)
        assert (received, signal.getsignal(signal.SIGHUP)) == ([], signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)


JOB = """
import os, signal, sys, time
from pathlib import Path

def save(*_):
    Path(os.environ["TAL_STOPPED"]).write_text("saved")
    sys.exit(75)

signal.signal(signal.SIGUSR1, save)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
Path(__file__).with_name("started").touch()
time.sleep(300)
"""
SWEEP = """
import sys
from pathlib import Path
from think_as_locals.runtime.run_folder import lock_run_dir
from think_as_locals.sweeps.jobs import launch
from think_as_locals.sweeps.settings import load_settings

folder = Path(sys.argv[1])
with lock_run_dir(folder) as lock:
    launch(["mine", "next"], folder, load_settings(sys.argv[2:]), [], lock, print)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "statuses"), [([], [75, None]), (["sweep=joblib"], [75, 75])], ids=["local", "joblib"]
)
def test_killed_sweep_ends_its_jobs_and_keeps_the_lock_until_then(
    tmp_path: Path, warm_python: str, words: list[str], statuses: list[int | None]
) -> None:
    for name in ("mine", "next"):
        (tmp_path / JOBS / name).mkdir(parents=True)
        (tmp_path / JOBS / name / f"{name}.yaml").write_text(JOB)
    sweeping = subprocess.Popen([warm_python, "-c", SWEEP, str(tmp_path), *words], cwd=tmp_path)
    until = time.monotonic() + 100
    while len(list(tmp_path.glob(f"{JOBS}/*/started"))) < statuses.count(75) and time.monotonic() < until:
        time.sleep(0.1)
    processes = processes_in(tmp_path)
    sweeping.kill()
    sweeping.wait()
    with pytest.raises(ConfigError, match="in use by another process"), lock_run_dir(tmp_path):
        pass
    assert len(processes) >= 5  # the sweep, Hydra's launcher, node.sh, accelerate, the job
    assert not psutil.wait_procs(processes, timeout=60)[1]
    with lock_run_dir(tmp_path):
        assert [read_status(tmp_path / JOBS / name) for name in ("mine", "next")] == statuses

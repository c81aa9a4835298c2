"""A sweep's own settings, the GPUs its jobs share, and what it does on signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from think_as_locals.config.compose import group_options, read_launch
from think_as_locals.sweeps.jobs import STOP
from think_as_locals.sweeps.launcher import compose_settings, load_settings, split_overrides, stop_signals, visible_gpus
from think_as_locals.types import ConfigError


@pytest.mark.parametrize("option", group_options()["sweep"])
def test_every_option_loads_and_its_launcher_is_installed(option: str) -> None:
    settings = load_settings([f"sweep={option}"])
    assert settings.option == option
    assert settings.section.search == ("optuna" if option == "optuna" else "grid")
    launchers = {"joblib": "JoblibLauncher", "slurm": "SlurmLauncher"}
    target = compose_settings(option, settings.overrides).hydra.launcher["_target_"]
    assert target.endswith(launchers.get(option, "BasicLauncher"))


def test_keys_of_the_sweep_and_of_hydra_do_not_reach_the_jobs() -> None:
    ours = ["sweep=joblib", "sweep.launch=a", "hydra.launcher.n_jobs=4", "+hydra.launcher.x=1", "hydra/launcher=a"]
    theirs = ["seed=1", "+data.path=x", "rollout=vllm"]
    assert split_overrides([*ours, *theirs]) == (ours, theirs)


def test_optuna_runs_beside_another_launcher() -> None:
    settings = load_settings(["sweep=optuna", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "sweep.num_trials=5"])
    assert (settings.section.search, settings.section.num_trials) == ("optuna", 5)
    assert compose_settings(settings.option, settings.overrides).hydra.launcher.n_jobs == 3


def test_a_job_is_launched_with_a_file_of_ours_or_of_the_users_own(tmp_path: Path) -> None:
    assert load_settings(["sweep.launch=cpu_zero3"]).launch_file.name == "cpu_zero3.yaml"
    (own := tmp_path / "mine.yaml").write_text("num_processes: 1\n")
    assert load_settings([f"sweep.launch={own}"]).launch_file == own


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "got NoneType"), ("- 1", "got list"), ("a: [", "cannot be read"), ("num_processes: two", "got 'two'")],
)
def test_a_file_that_is_no_launch_file_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (own := tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"mine.yaml: .*{message}"):
        load_settings([f"sweep.launch={own}"])
    with pytest.raises(ConfigError, match=rf"mine.yaml: .*{message}"):
        read_launch(own)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep=slrum", "no such option; did you mean 'slurm'?"),
        ("sweep.serach=grid", "sweep.serach: no such key; did you mean 'sweep.search'?"),
        ("+sweep.trials=3", "sweep.trials: no such key"),
        ("sweep.seed=NO", "sweep.seed: got 'NO', expected a valid integer"),
        ("sweep.num_trials=0", "sweep.num_trials: got 0"),
        ("sweep.search=random", "sweep.search: got 'random'"),
        ("sweep.launch=gpu8_zero33", "did you mean 'gpu8_zero3'?"),
        ("sweep.launch=nodes_zero3", "for several machines"),
        ("hydra/launcher=ray", r"pip install 'think-as-locals\[sweep\]'"),
    ],
)
def test_errors_name_what_there_is(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings([override])


# --- GPUs ---


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-a)'\necho '  MIG 1g.18gb Device 0: (UUID: MIG-b)'\n"
        "echo 'GPU 1: NVIDIA H200 (UUID: GPU-c)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("named", "found"), [(None, ["0", "1"]), ("", []), ("-1", []), ("3", ["3"]), ("GPU-a, GPU-c", ["GPU-a", "GPU-c"])]
)
def test_visible_gpus(named: str | None, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == found


@pytest.mark.usefixtures("two_gpus")
def test_a_job_has_as_many_gpus_as_its_launch_file_has_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pair := tmp_path / "pair.yaml").write_text("num_processes: 2\n")
    assert load_settings(["sweep=joblib"]).gpu_shares == ["0", "1"]
    assert load_settings(["sweep=joblib", f"sweep.launch={pair}"]).gpu_shares == ["0,1"]
    assert load_settings(["sweep=joblib", "sweep.own_gpus=false"]).gpu_shares == []
    assert load_settings(["sweep=local"]).gpu_shares == []
    with pytest.raises(ConfigError, match=r"gpu8_ddp takes 8 GPUs, 2 can be used here: .*sweep.own_gpus=false"):
        load_settings(["sweep=joblib", "sweep.launch=gpu8_ddp"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert load_settings(["sweep=joblib", "sweep.launch=cpu_ddp"]).gpu_shares == []


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_asks_jobs_to_stop_and_the_previous_handler_is_restored(
    tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with stop_signals(tmp_path) as received:
        assert not (tmp_path / STOP).exists()
        os.kill(os.getpid(), number)
        assert received == [number]
        assert (tmp_path / STOP).exists()
    assert signal.getsignal(number) == before


def test_under_nohup_a_sweep_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(tmp_path) as received:
            os.kill(os.getpid(), signal.SIGHUP)
        assert (received, signal.getsignal(signal.SIGHUP)) == ([], signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)

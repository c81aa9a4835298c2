"""A sweep's own part of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from think_as_locals.composition import group_options
from think_as_locals.memory import read_launch
from think_as_locals.sweeps.settings import compose_settings, load_settings, split
from think_as_locals.types import ConfigError


@pytest.mark.parametrize("option", group_options()["sweep"])
def test_every_option_loads_and_its_launcher_is_installed(option: str) -> None:
    settings = load_settings([f"sweep={option}"])
    assert settings.option == option
    assert settings.section.search == ("optuna" if option == "optuna" else "grid")
    launchers = {"joblib": "JoblibLauncher", "slurm": "SlurmLauncher"}
    target = compose_settings(option, settings.overrides).hydra.launcher["_target_"]
    assert target.endswith(launchers.get(option, "BasicLauncher"))


def test_keys_of_the_sweep_and_of_hydra_are_not_the_jobs() -> None:
    ours = [
        "sweep=joblib",
        "sweep.launch=gpu8_ddp",
        "hydra.launcher.n_jobs=4",
        "+hydra.launcher.x=1",
        "hydra/launcher=a",
    ]
    assert split([*ours, "seed=1", "+data.path=x", "rollout=vllm"]) == (
        ours,
        ["seed=1", "+data.path=x", "rollout=vllm"],
    )


def test_optuna_runs_beside_another_launcher() -> None:
    settings = load_settings(["sweep=optuna", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "sweep.num_trials=5"])
    assert (settings.section.search, settings.section.num_trials) == ("optuna", 5)
    assert compose_settings(settings.option, settings.overrides).hydra.launcher.n_jobs == 3


def test_a_job_is_launched_with_a_configuration_of_ours_or_of_ones_own(tmp_path: Path) -> None:
    assert load_settings(["sweep.launch=cpu_zero3"]).launch_file.name == "cpu_zero3.yaml"
    (own := tmp_path / "mine.yaml").write_text("num_processes: 1\n")
    assert load_settings([f"sweep.launch={own}"]).launch_file == own


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "got NoneType"), ("- 1", "got list"), ("a: [", "cannot be read"), ("num_processes: two", "got 'two'")],
)
def test_a_launch_file_that_is_none_is_said(tmp_path: Path, text: str, said: str) -> None:
    (own := tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"mine.yaml: .*{said}"):
        load_settings([f"sweep.launch={own}"])
    with pytest.raises(ConfigError, match=rf"mine.yaml: .*{said}"):
        read_launch(own)


@pytest.mark.parametrize(
    ("override", "said"),
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
def test_what_is_wrong_is_said_with_what_there_is(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings([override])

"""Sweep settings, GPU shares of its jobs, value combinations, and optuna proposals."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from think_as_locals.config.compose import group_options
from think_as_locals.runtime.gpus import visible_gpus
from think_as_locals.sweeps.settings import (
    Combination,
    compose_settings,
    load_settings,
    parse,
    split_overrides,
    suggest,
)
from think_as_locals.types import ConfigError

TRIALS, CONCURRENT_TRIALS = 24, 3
LEARNING_RATES, SEEDS = ["grpo.learning_rate=1e-06", "grpo.learning_rate=5e-06"], ["seed=1", "seed=2", "seed=3"]


@pytest.mark.parametrize("option", group_options()["sweep"])
def test_every_option_loads_and_its_launcher_is_installed(option: str) -> None:
    found = load_settings([f"sweep={option}"])
    assert found.option == option
    assert found.section.search == ("optuna" if option == "optuna" else "grid")
    launchers = {"joblib": "JoblibLauncher", "slurm": "SlurmLauncher"}
    target = compose_settings(option, found.overrides).hydra.launcher["_target_"]
    assert target.endswith(launchers.get(option, "BasicLauncher"))


def test_sweep_and_hydra_keys_are_not_passed_to_jobs() -> None:
    ours = ["sweep=joblib", "sweep.launch=a", "hydra.launcher.n_jobs=4", "+hydra.launcher.x=1", "hydra/launcher=a"]
    theirs = ["seed=1", "+data.path=x", "rollout=vllm"]
    assert split_overrides([*ours, *theirs]) == (ours, theirs)


def test_optuna_can_be_combined_with_another_launcher() -> None:
    found = load_settings(["sweep=optuna", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "sweep.num_trials=5"])
    assert (found.section.search, found.section.num_trials) == ("optuna", 5)
    assert compose_settings(found.option, found.overrides).hydra.launcher.n_jobs == 3


def test_launch_file_is_a_packaged_one_or_the_users_own(tmp_path: Path) -> None:
    assert load_settings(["sweep.launch=cpu_zero3"]).launch_file.name == "cpu_zero3.yaml"
    (own := tmp_path / "mine.yaml").write_text("num_processes: 1\n")
    assert load_settings([f"sweep.launch={own}"]).launch_file == own
    assert load_settings([], launch="gpu8_zero3").launch_file.name == "gpu8_zero3.yaml"  # the recipe's run.launch
    assert load_settings(["sweep.launch=single"], launch="gpu8_zero3").launch_file.name == "single.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "got NoneType"), ("- 1", "got list"), ("a: [", "cannot be read"), ("num_processes: two", "got 'two'")],
)
def test_invalid_launch_file_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (own := tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"mine.yaml: .*{message}"):
        load_settings([f"sweep.launch={own}"])


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
def test_invalid_sweep_settings_are_rejected_with_a_hint(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings([override])


# --- GPUs ---


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 0\necho 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("named", "found"), [(None, ["0", "1"]), ("", []), ("-1", []), ("3", ["3"]), ("GPU-a, GPU-c", ["GPU-a", "GPU-c"])]
)
def test_visible_gpus_follow_cuda_visible_devices(
    named: str | None, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == found


@pytest.mark.usefixtures("two_gpus")
def test_gpu_share_equals_the_process_count_of_the_launch_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair := tmp_path / "pair.yaml").write_text("num_processes: 2\n")
    assert load_settings(["sweep=joblib"]).gpu_shares == ["0", "1"]
    assert load_settings(["sweep=joblib", f"sweep.launch={pair}"]).gpu_shares == ["0,1"]
    assert load_settings(["sweep=joblib", "sweep.own_gpus=false"]).gpu_shares == []
    assert load_settings(["sweep=local"]).gpu_shares == []
    with pytest.raises(ConfigError, match=r"gpu8_ddp takes 8 GPUs, 2 can be used here: .*sweep.own_gpus=false"):
        load_settings(["sweep=joblib", "sweep.launch=gpu8_ddp"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")  # one is left over
    assert load_settings(["sweep=joblib", f"sweep.launch={pair}"]).gpu_shares == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert load_settings(["sweep=joblib", "sweep.launch=cpu_ddp"]).gpu_shares == []


# --- combinations ---


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=1"], [()]),
        (["grpo.learning_rate=1e-6,5e-6", "seed=range(1,4)", "grpo.beta=0"], list(product(LEARNING_RATES, SEEDS))),
        (["reward=glob([pape?,j1])"], [("reward=j1",), ("reward=paper",)]),
        (["data.path='a,b'"], [()]),
        (["data.languages=[en],[de,th]"], [("data.languages=[en]",), ("data.languages=[de,th]",)]),
        (["seed=choice(2,2,3)"], [("seed=2",), ("seed=3",)]),
    ],
)
def test_combinations_follow_hydras_grammar(overrides: list[str], expected: list[Combination]) -> None:
    assert parse(overrides).combinations("grid") == expected


def test_overrides_with_one_value_are_shared_by_all_jobs() -> None:
    found = parse(["seed=1,2", "grpo.beta=0", "data.languages=[en,th]"])
    assert found.fixed == ("grpo.beta=0", "data.languages=[en,th]")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=1,2", "seed=3"], "seed: given 2 times"),
        (["run.name=a,b"], "a sweep has one run.name"),
        (["variant=full,without_gain"], "each variant of a recipe is run; leave one out by ~variants.NAME"),
        (["grpo.beta=interval(0,1)"], "choose sweep=optuna"),
        (["grpo.beta=choice("], "grpo.beta"),
        (["seed=range(3,1)"], r"seed=range\(3,1\): holds no value"),
        (["seed=1,2", "seed=glob(*)"], "seed: given 2 times"),
        (["grpo.beta=glob(*)"], "holds no value"),
    ],
)
def test_invalid_swept_values_are_rejected(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(overrides).combinations("grid")


def test_interval_combinations_include_both_ends() -> None:
    space = parse(["grpo.beta=interval(0,0.5)", "seed=int(interval(1,8))"])
    assert space.combinations("optuna")[0] == ("grpo.beta=0.0", "seed=1")
    assert space.combinations("optuna")[-1] == ("grpo.beta=0.5", "seed=8")


def _proposed() -> list[tuple[Combination, float | None]]:
    """Return proposals and scores where the best is near x = 1e-4 and kind = b, and every run with kind = c fails."""
    seen: list[tuple[Combination, float | None]] = []

    def run(combinations: list[Combination]) -> list[float | None]:
        assert len(combinations) == CONCURRENT_TRIALS
        scores = []
        for combination in combinations:
            values = dict(text.split("=") for text in combination)
            near = -abs(float(values["x"]) - 1e-4) * 1e4 + (values["kind"] == "b")
            scores.append(None if values["kind"] == "c" else near)
        seen.extend(zip(combinations, scores, strict=True))
        return scores

    suggest(parse(["x=tag(log,interval(1e-6,1e-2))", "kind=a,b,c"]), run, TRIALS, CONCURRENT_TRIALS, seed=0)
    return seen


def test_optuna_improves_despite_failures_and_is_reproducible() -> None:
    found = _proposed()
    assert len(found) == TRIALS
    assert all(1e-6 <= float(combination[0].removeprefix("x=")) <= 1e-2 for combination, _ in found)
    first, last = found[:12], found[12:]
    assert sum("kind=b" in combination for combination, _ in last) > sum("kind=b" in c for c, _ in first)
    assert max(score for _, score in found if score is not None) > 0.5
    assert _proposed() == found  # so that a sweep can continue


def test_search_ends_if_the_sweep_is_stopped() -> None:
    asked: list[int] = []
    suggest(
        parse(["kind=a,b"]), lambda combinations: asked.append(len(combinations)), TRIALS, CONCURRENT_TRIALS, seed=0
    )
    assert asked == [CONCURRENT_TRIALS]

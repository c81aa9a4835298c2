"""Jobs side by side on one machine: each has GPUs to itself, or waits for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from think_as_locals.sweeps.gpus import shares, visible
from think_as_locals.sweeps.jobs import JOBS, LOG, STOP, ended
from think_as_locals.sweeps.runner import Runner
from think_as_locals.sweeps.settings import load_settings
from think_as_locals.types import ConfigError

SCRIPT = """
echo "$0 has $CUDA_VISIBLE_DEVICES"
mkdir "$1/gpu-$CUDA_VISIBLE_DEVICES" || exit 3
sleep 0.3
rmdir "$1/gpu-$CUDA_VISIBLE_DEVICES"
"""


@pytest.fixture(autouse=True)
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-a)'\necho '  MIG 1g.18gb Device 0: (UUID: MIG-b)'\n"
        "echo 'GPU 1: NVIDIA H200 (UUID: GPU-c)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("named", "found"),
    [(None, ["0", "1"]), ("", []), ("-1", []), ("3", ["3"]), ("GPU-a, GPU-c", ["GPU-a", "GPU-c"])],
)
def test_which_gpus_may_be_used(named: str | None, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible() == found


def test_a_share_is_what_a_launch_file_has_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair := tmp_path / "pair.yaml").write_text("num_processes: 2\n")
    assert load_settings(["sweep=joblib"]).gpus == ["0", "1"]
    assert load_settings(["sweep=joblib", f"sweep.launch={pair}"]).gpus == ["0,1"]
    assert load_settings(["sweep=joblib", "sweep.own_gpus=false"]).gpus == []
    assert load_settings(["sweep=local"]).gpus == []
    with pytest.raises(ConfigError, match=r"gpu8_ddp takes 8 GPUs, 2 can be used here: .*sweep.own_gpus=false"):
        load_settings(["sweep=joblib", "sweep.launch=gpu8_ddp"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert load_settings(["sweep=joblib", "sweep.launch=cpu_ddp"]).gpus == []


def test_no_two_jobs_have_one_share_and_each_gets_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "_command", lambda self, recipe: ["bash", "-c", SCRIPT, recipe.stem, str(tmp_path)])
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        (tmp_path / JOBS / name).mkdir(parents=True)
        (tmp_path / JOBS / name / f"{name}.yaml").touch()
    runner = Runner(tmp_path, tmp_path, tuple(shares(["0", "1", "2"], 1)[:2]))
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda name: runner(SimpleNamespace(job=name)), names))
    assert [ended(tmp_path / JOBS / name) for name in names] == [0] * 5
    said = {(tmp_path / JOBS / name / LOG).read_text().split()[-1] for name in names}
    assert said == {"0", "1"}


def test_who_waits_for_gpus_hears_that_the_sweep_stops(tmp_path: Path) -> None:
    (tmp_path / JOBS / "mine").mkdir(parents=True)
    (tmp_path / STOP).touch()
    Runner(tmp_path, tmp_path, ("0",))(SimpleNamespace(job="mine"))
    assert ended(tmp_path / JOBS / "mine") is None

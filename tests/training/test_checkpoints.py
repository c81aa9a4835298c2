"""Checkpoints are complete or absent: with plain files, and with a disk that fails at each write."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from conftest import launch
from deepspeed.runtime.zero.config import ZeroStageEnum
from training.small_grpo import Code, tiny_trainer

from think_as_locals.training.checkpoints import Checkpoints, pickles_as_data, step_of
from think_as_locals.training.grpo import JudgeTrainer
from think_as_locals.types import ConfigError, TrainingError


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, keep=2)


def commit(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.commit(step, lambda step=step: _write(checkpoints.folder / f"checkpoint-{step}", step))


def _write(folder: Path, step: int) -> None:
    (folder / "global_step").mkdir(parents=True)
    (folder / "weights").write_bytes(bytes([step]) * 1000)
    (folder / "global_step" / "shard").write_text(f"shard of {step}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_committed_checkpoint_lists_every_file_and_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    assert checkpoints.latest() is None
    commit(checkpoints, 3)
    assert names(tmp_path / "c") == ["step-3"]
    manifest = json.loads((tmp_path / "c" / "step-3" / "manifest.json").read_text())
    assert (manifest["step"], manifest["launch"]) == (3, "1 x NO")
    assert manifest["files"] == {"weights": 1000, "global_step/shard": 10}
    found = checkpoints.latest()
    assert found == tmp_path / "c" / "step-3"
    assert step_of(found) == 3


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def add(path: Path) -> None:
    path.with_name("scaler.pt").write_bytes(b"a pickle that the run did not write")


@pytest.mark.parametrize("harm", [truncate, Path.unlink, add])
@pytest.mark.parametrize("file", ["weights", "global_step/shard", "manifest.json"])
def test_damaged_checkpoint_is_skipped_with_a_warning(
    checkpoints: Checkpoints, harm: Callable[[Path], None], file: str, caplog: pytest.LogCaptureFixture
) -> None:
    commit(checkpoints, 1, 2)
    harm(checkpoints.folder / "step-2" / file)
    with caplog.at_level(logging.WARNING):
        assert checkpoints.latest() == checkpoints.folder / "step-1"
    assert "step-2 is incomplete" in caplog.text
    harm(checkpoints.folder / "step-1" / file)  # where none is intact, the run does not start over by itself
    with pytest.raises(ConfigError, match=r"no checkpoint in .* is complete"):
        checkpoints.latest()


def test_checkpoint_replaces_that_of_its_step_and_what_a_kill_left(checkpoints: Checkpoints, tmp_path: Path) -> None:
    commit(checkpoints, 1, 2, 2)
    assert checkpoints.latest() == tmp_path / "step-2"
    assert names(tmp_path) == ["step-1", "step-2"]
    commit(checkpoints, 1)
    _write(tmp_path / "checkpoint-2", 2)
    _write(tmp_path / ".step-1", 1)
    assert checkpoints.latest() == tmp_path / "step-1"
    commit(checkpoints, 3)
    assert names(tmp_path) == ["step-1", "step-3"]


@pytest.mark.parametrize(
    ("keep", "best", "steps", "kept"),
    [
        (2, 2, [1, 2, 3, 4, 11], ["step-11", "step-2", "step-4"]),
        (1, 9, [9, 2], ["step-2"]),  # the run went back: what was abandoned does not outlive it
    ],
)
def test_rotation_keeps_the_newest_and_the_best(
    tmp_path: Path, keep: int, best: int, steps: list[int], kept: list[str]
) -> None:
    checkpoints = Checkpoints(tmp_path, keep, best_step=lambda: best)
    commit(checkpoints, *steps)
    assert names(tmp_path) == kept
    assert checkpoints.latest() == tmp_path / f"step-{steps[-1]}"


def test_failed_write_keeps_old_checkpoint_and_names_the_remedy(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    commit(checkpoints, 1)

    def full() -> None:
        _write(tmp_path / "checkpoint-2", 2)
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainingError) as caught:
        checkpoints.commit(2, full)
    assert str(caught.value) == (
        "the checkpoint of step 2 could not be written (rank 0: No space left on device: free the disk); "
        f"run.resume=auto then continues from {tmp_path / 'step-1'}"
    )
    assert names(tmp_path) == ["step-1"]
    assert checkpoints.latest() == tmp_path / "step-1"


def test_checkpoint_of_another_launch_kind_is_rejected(checkpoints: Checkpoints) -> None:
    commit(checkpoints, 1)
    manifest = checkpoints.folder / "step-1" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "launch": "8 x DEEPSPEED"}))
    with pytest.raises(ConfigError, match="is from a launch of 8 x DEEPSPEED, this one is 1 x NO"):
        checkpoints.latest()


@pytest.mark.parametrize("manifest", [{"step": 2}, {"step": 2, "files": {}}, [], {"step": 2, "launch": "", "files": 3}])
def test_checkpoint_with_incomplete_manifest_is_ignored(checkpoints: Checkpoints, manifest: Any) -> None:
    commit(checkpoints, 1, 2)
    for file in (checkpoints.folder / "step-2").rglob("*"):
        if file.is_file():
            file.unlink()
    (checkpoints.folder / "step-2" / "manifest.json").write_text(json.dumps(manifest))
    assert checkpoints.latest() == checkpoints.folder / "step-1"


@pytest.mark.slow
@pytest.mark.long
def test_last_checkpoint_is_intact_whichever_write_fails(tmp_path: Path) -> None:
    here = Path(__file__).parent
    library = tmp_path / "full_disk.so"
    built = launch("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(here / "full_disk.c"), "-ldl")
    assert built.returncode == 0, built.stderr
    done = launch(
        sys.executable, str(here / "full_disk.py"), str(tmp_path), LD_PRELOAD=str(library), PYTHONPATH=str(here.parent)
    )
    assert done.returncode == 0, done.stderr
    *attempts, unharmed = json.loads((tmp_path / "results.json").read_text())
    assert unharmed == {"error": "", "good": "step-2"}
    failed = [attempt for attempt in attempts if attempt["error"]]
    assert len(failed) > 15  # weights, optimizer, random numbers, our own files, manifest, names
    assert len(failed) > 0.8 * len(attempts)  # transformers does without its model card
    for attempt in failed:
        assert attempt["good"] in ("step-1", "step-2")
        assert attempt["error"].startswith("the checkpoint of step 2 could not be written (rank 0: ")
    assert all(attempt["good"] == "step-2" for attempt in attempts if not attempt["error"])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [[], ["lora=rank16", "lora.r=4"]], ids=["full", "LoRA"])
def test_code_in_any_checkpoint_file_is_not_executed(tmp_path: Path, overrides: list[str]) -> None:
    def trainer() -> JudgeTrainer:
        return tiny_trainer(tmp_path, "grpo.save_steps=1", *overrides)

    trainer().train_from(None)
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    refused: dict[str, str] = {}
    poisoned, marker = tmp_path / "poisoned" / checkpoint.name, tmp_path / "marker"
    whole = sorted(path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file())
    if overrides:  # the others are as without an adapter
        whole = [name for name in whole if "adapter" in name]
    for name in whole:
        shutil.copytree(checkpoint, poisoned)
        torch.save({"state": Code(marker)}, poisoned / name)
        try:
            trainer().train_from(poisoned)
        except Exception as error:
            refused[name] = str(error)
        assert not marker.exists(), name
        shutil.rmtree(poisoned)
    data = {"model.safetensors", "adapter_model.safetensors", "rank-0.safetensors", "rank-0.json", "trainer_state.json"}
    pickles = {"optimizer.pt", "rng_state.pth", "scheduler.pt"}
    assert refused.keys() >= (data | pickles) & set(whole) > set()
    assert all(f"{poisoned}: a file of it holds code" in refused[name] for name in pickles & set(whole))


class Attribute:
    """Pickled as the attribute of an object, as Python before 3.11.4 pickles a member of an enumeration."""

    def __init__(self, owner: Any, name: str) -> None:
        self.of = owner, name

    def __reduce__(self) -> Any:
        return getattr, self.of


@pytest.mark.parametrize(("owner", "name"), [(Checkpoints, "latest"), (ZeroStageEnum, "__init__"), (int, "real")])
def test_zero_stage_is_the_only_attribute_a_checkpoint_may_load(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)
    monkeypatch.setattr("think_as_locals.training.checkpoints.PartialState", lambda: kind)
    torch.save({"zero_stage": Attribute(ZeroStageEnum, "weights")}, tmp_path / "stage")
    torch.save({"zero_stage": Attribute(owner, name)}, tmp_path / "other")
    with pickles_as_data():
        assert torch.load(tmp_path / "stage", weights_only=False) == {"zero_stage": ZeroStageEnum.weights}
        with pytest.raises((pickle.UnpicklingError, KeyError)):
            torch.load(tmp_path / "other", weights_only=False)

"""GPU detection, and how the processes of a launch divide the GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from think_as_locals.runtime import gpus
from think_as_locals.types import PreflightError


@pytest.mark.parametrize(
    ("visible", "local", "processes", "expected"),
    [
        ("0,1,2,3,4,5,6,7", 1, 4, "2,3"),
        ("GPU-a,GPU-b", 1, 2, "GPU-b"),
        ("4,5,6", 0, 2, "4"),
        ("2,3", 0, 1, "2,3"),
        ("", 1, 2, ""),
        ("0", 0, 2, None),
    ],
)
def test_launch_processes_take_disjoint_gpus(
    visible: str, local: int, processes: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    if expected is None:
        with pytest.raises(PreflightError, match="2 processes were started here, for 1 GPUs"):
            gpus.take_own_gpus()
        return
    gpus.take_own_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == expected


def test_without_cuda_visible_devices_all_gpus_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 0\necho 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpus.visible_gpus() == []

"""Finished runs that a test may modify, and a fake Hub to push them to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub.fake_hub import TOKEN, FakeHub, serving
from hub.small_runs import write_run
from huggingface_hub import HfApi


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "small-judge")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs" / finished.name))


@pytest.fixture
def steered(steered_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(steered_run, tmp_path / "runs" / steered_run.name))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    # Without xet, large files go by LFS.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving() as served:
        yield served


@pytest.fixture
def api(hub: FakeHub) -> HfApi:
    return HfApi(endpoint=hub.url, token=TOKEN)

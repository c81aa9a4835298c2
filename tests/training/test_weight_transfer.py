"""Weights to a server: files that are read while later ones are written; NCCL as far as it works without a GPU."""

from __future__ import annotations

import threading
import time
import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from think_as_locals.training import weight_transfer
from think_as_locals.training.weight_transfer import WeightFiles, nccl_unsupported_reason

TENSORS = {f"layer.{number}": torch.full((256,), float(number)) for number in range(7)}


def test_concurrent_readers_stream_files_and_get_every_tensor(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "sync", limit_s=10, file_bytes=2048)  # two tensors in a file
    read: list[dict[str, torch.Tensor]] = [{}, {}]
    first = threading.Event()

    def load(into: dict[str, torch.Tensor]) -> None:
        for file in files:
            into |= load_file(file)
            first.set()

    readers = [threading.Thread(target=load, args=(into,)) for into in read]
    for reader in readers:
        reader.start()
    for number, (name, tensor) in enumerate(TENSORS.items()):
        files.add(name, tensor)
        if number == 1:
            assert first.wait(10)  # the first file is read before there is a second one
    files.close()
    for reader in readers:
        reader.join(10)
    for into in read:
        assert into.keys() == TENSORS.keys()
        assert all(torch.equal(into[name], tensor) for name, tensor in TENSORS.items())
    assert len(list(files)) == 4  # again, for a server that was restarted


def test_at_most_two_files_of_tensors_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        weight_transfer, "save_file", lambda *given, **more: time.sleep(0.02) or save_file(*given, **more)
    )
    files = WeightFiles(tmp_path / "sync", limit_s=10, file_bytes=1024)  # a tensor and a file each
    held: list[weakref.ref[torch.Tensor]] = []
    monkeypatch.setattr(
        files, "_write", lambda write=files._write: (held.extend(map(weakref.ref, files._filled.values())), write())
    )
    most = 0
    for name, tensor in TENSORS.items():
        files.add(name, tensor)
        most = max(most, sum(each() is not None for each in held))
    files.close()
    assert len(list(files)) == len(held) == 7
    assert most <= 2
    assert not any(each() is not None for each in held)


def test_unwritable_folder_raises_in_the_reader(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = WeightFiles(tmp_path / "file" / "sync", limit_s=10, file_bytes=2048)
    for name, tensor in TENSORS.items():
        files.add(name, tensor)
    files.close()
    with pytest.raises(NotADirectoryError):
        list(files)


def test_nccl_unsupported_reason_names_missing_gpu() -> None:
    missing = "the trainer has no GPU" if find_spec("vllm") else "vLLM is not installed beside the trainer"
    assert nccl_unsupported_reason({"gpu": True}) == missing

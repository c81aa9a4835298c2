"""Weights on their way to servers: files that are read while others are written, and what goes wrong with them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from think_as_locals.training.weight_files import WeightFiles

TENSORS = {f"layer.{number}": torch.full((256,), float(number)) for number in range(7)}


def test_files_are_read_as_they_come_by_several_and_hold_every_tensor_once(tmp_path: Path) -> None:
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


def test_a_folder_that_takes_no_file_is_an_error_of_the_reader(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = WeightFiles(tmp_path / "file" / "sync", limit_s=10, file_bytes=2048)
    for name, tensor in TENSORS.items():
        files.add(name, tensor)
    files.close()
    with pytest.raises(NotADirectoryError):
        list(files)

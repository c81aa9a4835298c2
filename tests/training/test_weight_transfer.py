"""Weights to a server: files that are read while later ones are written; NCCL as far as it works without a GPU."""

from __future__ import annotations

import threading
import time
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import Answer, Received, answering
from safetensors.torch import load_file, save_file

from think_as_locals.engines.vllm_server import VLLMServer
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


def test_weight_update_is_announced_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    asked: list[tuple[str, Any]] = []

    def respond(request: Received) -> Answer:
        if request.path == "/collective_rpc":
            started = [path for path, _ in asked if path.endswith("_weight_update")]
            return 200, {"results": [{"updating": started[-1:] == ["/start_weight_update"]}]}, {}
        asked.append((request.path, request.body))
        return 200, {"success": True}, {}

    update = {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [[2, 2]]}
    with answering(respond) as url:
        client = VLLMServer(url, timeout_s=5)
        client.next_weights = "sync-7"
        client.start_weight_update()
        client.update_weights(update)
        client.finish_weight_update()
    routes = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
    assert [path for path, _ in asked] == routes
    assert asked[1][1] == {"update_info": {**update, "weights": "sync-7"}}
    assert asked[2][1] == {"weight_version": "sync-7"}


def test_nccl_unsupported_reason_names_missing_gpu() -> None:
    missing = "the trainer has no GPU" if find_spec("vllm") else "vLLM is not installed beside the trainer"
    assert nccl_unsupported_reason({"gpu": True}) == missing

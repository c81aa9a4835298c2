"""Weights to servers: files that are read while later ones are written; NCCL as far as it works without a GPU."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import HANGS_UP, Answer, Received, answering
from safetensors.torch import load_file, save_file

from think_as_locals.engines.vllm_server import VLLMServers
from think_as_locals.training import weight_transfer
from think_as_locals.training.weight_transfer import TransferClient, WeightFiles, nccl_unsupported_reason

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


@dataclass
class Workers:
    """A server of so many workers, which takes everything."""

    count: int
    dead: bool = False
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def respond(self, request: Received) -> Answer:
        if self.dead:
            return HANGS_UP, None, {}
        if request.path == "/get_world_size":
            return 200, {"world_size": self.count}, {}
        if request.path == "/collective_rpc":
            started = [path for path, _ in self.asked if path.endswith("_weight_update")]
            return 200, {"results": [{"updating": started[-1:] == ["/start_weight_update"]}] * self.count}, {}
        self.asked.append((request.path, request.body))
        return 200, {"success": True}, {}


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TransferClient, list[Workers]]]:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    each = [Workers(2), Workers(4)]
    with ExitStack() as up:
        urls = [up.enter_context(answering(one.respond)) for one in each]
        yield TransferClient(VLLMServers(urls, timeout_s=5)), each


def test_workers_of_all_servers_get_ranks_in_one_group(workers: tuple[TransferClient, list[Workers]]) -> None:
    client, (small, large) = workers
    assert client.world_size() == 6
    client.init_weight_transfer_engine({"master_address": "here", "master_port": 1, "rank_offset": 1, "world_size": 7})
    offsets = [one.asked[0][1]["init_info"]["rank_offset"] for one in (small, large)]
    assert offsets == [1, 3]  # behind the trainer, and behind the first server's two
    assert large.asked[0][1]["init_info"]["world_size"] == 7


def test_weight_update_is_announced_to_every_server_by_name(workers: tuple[TransferClient, list[Workers]]) -> None:
    client, each = workers
    client.name = "sync-7"
    client.start_weight_update()
    client.update_weights({"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [[2, 2]]})
    client.finish_weight_update()
    for one in each:
        routes = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
        assert [path for path, _ in one.asked] == routes
        assert one.asked[1][1]["update_info"] == {
            "names": ["w"],
            "dtype_names": ["bfloat16"],
            "shapes": [[2, 2]],
            "weights": "sync-7",
        }
        assert one.asked[2][1] == {"weight_version": "sync-7"}


def test_unreachable_server_is_left_out_of_the_nccl_group(workers: tuple[TransferClient, list[Workers]]) -> None:
    client, (small, large) = workers
    small.dead = True
    assert len(client.servers.states()) == 1
    assert client.world_size() == 4
    client.init_weight_transfer_engine({"rank_offset": 1})
    assert [info["init_info"]["rank_offset"] for _, info in large.asked] == [1]


def test_nccl_unsupported_reason_names_missing_server_or_gpu() -> None:
    assert nccl_unsupported_reason([{"gpu": True}]) == "the trainer has no GPU"

"""vLLM's NCCL weight transfer, as far as it works without a GPU: group ranks and update announcements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from loopback import HANGS_UP, Answer, Received, answering

from think_as_locals.engines.server_pool import VLLMServers
from think_as_locals.training.nccl_transfer import TransferClient, nccl_unsupported_reason


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

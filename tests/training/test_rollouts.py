"""The real engines on CPU: every weight sync is checked, a server that hangs or dies ends the run on all ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, command, launch
from training.engine_process import WIDE
from training.small_grpo import tiny_trainer

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).parent / "engine_process.py")
KEY = "a secret of this test"
STALE = "differ from the policy's by"


def measure(task: str, folder: Path, processes: int, *arguments: str) -> list[dict[str, Any]]:
    """What each rank found."""
    nproc = ["--nproc_per_node", str(processes)]
    where = {"VLLM_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
    done = launch(command("torchrun"), *nproc, SCRIPT, task, str(folder), *arguments, timeout=600, **where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    return [json.loads((folder / f"{task}-{rank}.json").read_text()) for rank in range(processes)]


def check(ranks: list[dict[str, Any]], reason: str) -> None:
    """What holds for either engine, with the reason for which it does not apply an adapter itself."""
    for rank in ranks:
        for log in rank["logs"] + rank["lora"]["logs"]:
            assert log["rollout/probe_difference"] < 1e-4
            assert log["sampling/sampling_logp_difference/max"] < 1e-4
            assert log["rollout/prefix_cache_hit_rate"] > 0.3  # two rollouts of a prompt at least
        assert STALE in rank["left out"]
        assert rank["adapter"] == ""
        assert rank["whole"][0] == rank["whole"][1]
        assert rank["base kept"]
        check_adapter(rank["lora"])
    assert all(rank["left out"] == ranks[0]["left out"] for rank in ranks)
    assert [len(rank["merged"]) for rank in ranks] == [1, 0]  # logged once, by one rank
    assert reason in ranks[0]["merged"][0]


def check_adapter(rank: dict[str, Any]) -> None:
    """An adapter travels alone, what is sampled follows it, and no block of the prefix cache outlives a sync."""
    base, alone = rank["bytes"]
    assert rank["warned"] == []
    assert rank["alone"] == alone < base
    assert rank["logs"][-1]["rollout/synced_megabytes"] == pytest.approx(alone / 1e6)
    before, after = rank["samples"]
    if before:  # one rank asks a server
        assert before != after
        first, again, changed = rank["hits"]
        assert (first, changed) == (0, 0)
        assert again >= 128
    assert rank["evaluated"] == rank["policy"]
    assert rank["base kept"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str, str]]:
    """A folder with a model, and port and process id of a server of it that is just starting."""
    tiny_trainer(tmp_path, *WIDE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"VLLM_API_KEY": KEY, "PORT": port, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    search = {"PATH": f"{Path(command('python')).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    options = ["--dtype", "float32", "--enforce-eager", "--enable-lora", "--max-lora-rank", "16"]
    words = [str(ROOT / "launch" / "vllm_server.sh"), str(tmp_path / "model"), *options]
    with (tmp_path / "server.log").open("w") as log:
        environment = {**os.environ, **settings, **search}
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True, text=True
        )
        try:
            yield tmp_path, port, str(process.pid)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_server_that_is_checked_restarted_stopped_and_killed(server: tuple[Path, str, str]) -> None:
    folder, port, process = server
    ranks = measure("serve", folder, 2, port, process)
    check(ranks, "its rank is 32, the engine was started for ranks up to 16")
    for rank in ranks:
        assert rank["unlocked"] == [401, 401, 401, 200]
        assert rank["lora"]["left behind"] == []
        base, alone = rank["lora"]["bytes"]
        assert rank["lora"]["logs"][0]["rollout/synced_megabytes"] == pytest.approx((base + alone) / 1e6)
        assert rank["lora"]["resent"] == base + alone
        assert rank["lora"]["resampled"] == ranks[0]["lora"]["samples"][-1]
        assert rank["left behind"] == ["another/sync-used"]
        assert rank["restarts once"] == ""
        assert "came back with other weights 3 times while it took new weights" in rank["restarts always"]
        assert "/collective_rpc" in rank["unseen"]
        assert "rollout.weights_dir" in rank["unseen"]
        assert "TimeoutError: took longer than 1 s" in rank["stuck"]
        assert "rollout.timeout_s" in rank["stuck"]
        current, stale = rank["not synced"]  # what shows that a batch is stale, whatever is done against it
        assert current < 1e-4
        assert stale > 1e-2
        # What it sampled with other weights is not used: it gets the policy's, and samples again.
        assert rank["policy"] == rank["resampled"]
        assert rank["waited"] < 10
        for end in ("hangs", "killed"):
            assert f"the vLLM server at http://127.0.0.1:{port}" in rank[end]
            assert "Start it with launch/vllm_server.sh" in rank[end]
        assert "ReadTimeout" in rank["hangs"]
        assert "ConnectError" in rank["killed"]
    assert ranks[0]["restarted"] != ranks[0]["policy"]
    assert sum(ranks[0]["policy"] != one["policy"] for one in ranks) == 0
    assert KEY not in (folder / "server.log").read_text()


def test_colocated_engines_of_two_processes(tmp_path: Path) -> None:
    ranks = measure("colocate", tmp_path, 2)
    check(ranks, "vLLM knows no adapter with use_dora=True")
    for rank in ranks:
        assert rank["lora"]["logs"][0]["rollout/synced_megabytes"] == pytest.approx(rank["lora"]["bytes"][1] / 1e6)
        assert rank["unsupported"] == "vLLM has no adapters for GPT2LMHeadModel"
        unchanged, changed = rank["stale LM head"]  # as vLLM leaves it by itself
        assert unchanged == ""
        assert STALE in changed
        assert "rollout.tolerance.full" in changed

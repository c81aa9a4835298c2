"""The real engines on CPU: every weight sync is checked, and a dead server ends the run on all ranks."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, command, launch
from training.engine_process import WIDE, change
from training.local_engine import LocalEngine
from training.small_grpo import ends_with, tiny_trainer

from think_as_locals.training import grpo

pytestmark = pytest.mark.slow

KEY = "a secret of this test"


def run_checks(python: str, task: str, folder: Path, *arguments: str) -> None:
    """Run the checks of a task on two ranks."""
    words = ["--nproc_per_node", "2", str(Path(__file__).parent / "engine_process.py"), task, str(folder), *arguments]
    done = launch(python, command("torchrun"), *words, timeout=600, VLLM_API_KEY=KEY, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr


@contextmanager
def serving(folder: Path, python: str) -> Iterator[str]:
    """The port of a server of the model in a folder that is just starting."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"VLLM_API_KEY": KEY, "PORT": port, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    settings |= {"PYTHON": python, "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    options = ["--dtype", "float32", "--enforce-eager", "--enable-lora", "--max-lora-rank", "16"]
    options += ["--worker-extension-cls", "tests.training.tcp_transfer.WorkerExtension"]
    words = [str(ROOT / "launch" / "vllm_server.sh"), str(folder / "model"), *options]
    with (folder / f"server-{port}.log").open("w") as log:
        environment = {**os.environ, **settings}
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log, text=True)
        try:
            yield port
        finally:
            process.kill()
            process.wait()


@pytest.mark.long
def test_served_engine_checks_pass_across_server_failures(tmp_path: Path, warm_vllm: str) -> None:
    tiny_trainer(tmp_path, *WIDE)
    with serving(tmp_path, warm_vllm) as port:
        run_checks(warm_vllm, "serve", tmp_path, port)
    assert KEY not in (tmp_path / f"server-{port}.log").read_text()


def test_colocated_engine_checks_pass_on_two_processes(tmp_path: Path, warm_vllm: str) -> None:
    run_checks(warm_vllm, "colocate", tmp_path)


@pytest.mark.parametrize("sleeps", [True, False])
def test_engine_sleeps_again_after_an_evaluation(sleeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo, "ColocatedGeneration", LocalEngine)
    trainer = tiny_trainer(tmp_path, "rollout=vllm_colocate")
    engine: Any = trainer.vllm_generation
    levels = list[int]()
    engine.enable_sleep_mode, engine.llm.sleep = sleeps, lambda level: levels.append(level)
    with grpo.policy_engine(trainer, 1):
        assert levels == []
    assert levels == [2] * sleeps


def test_update_by_1e_6_that_does_not_arrive_ends_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo, "ColocatedGeneration", LocalEngine)
    trainer = tiny_trainer(tmp_path, "model.dtype=bfloat16", "rollout=vllm_colocate")
    engine: Any = trainer.vllm_generation
    engine.sync_weights()
    change(trainer.model, 1e-6)
    engine.withheld = "weight"
    assert "expected the same bits" in ends_with(engine.sync_weights)
    engine.withheld = ""
    assert ends_with(engine.sync_weights) == ""


def test_sync_tolerance_is_a_multiple_of_the_first_sync_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo, "ColocatedGeneration", LocalEngine)
    half = ["model.dtype=bfloat16", "rollout=vllm_colocate", "rollout.tolerance.growth=3.0"]
    engine: Any = tiny_trainer(tmp_path, *half).vllm_generation
    engine.sync_weights()
    found = engine._check_completions()

    def differs_by(shift: float) -> str:
        likeliest = [[{token: value + shift for token, value in place.items()} for place in c.likeliest] for c in found]
        moved = [replace(one, likeliest=places) for one, places in zip(found, likeliest, strict=True)]
        return ends_with(lambda: engine._compare(moved))

    # Never above the tolerance, nor below a tenth of it.
    for noise, limit, key in ((0.0, 0.01, "growth times"), (0.02, 0.06, "growth times"), (0.2, 0.1, "half")):
        engine._noise = noise
        assert differs_by(0.9 * limit) == ""
        assert f"expected at most {limit:.2g} (rollout.tolerance.{key}" in differs_by(1.1 * limit)

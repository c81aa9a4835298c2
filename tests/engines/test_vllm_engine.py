"""The real vLLM engine on CPU writes the same text as transformers; a checksum finds an update that did not arrive."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import yaml
from conftest import ROOT, SMALL, command, launch
from reward_models.tiny import a_tokenizer
from torch import Tensor, nn
from warm import processes_in

from think_as_locals.config.run_schema import RunConfig
from think_as_locals.data import load
from think_as_locals.data.sources import jsonl
from think_as_locals.engines import Chat, Sampling
from think_as_locals.engines.vllm_engine import SentTensors, VLLMEngine, check_sync, checksum, prepare, read_checksum
from think_as_locals.types import ModelError, TrainingError


def compared(python: str, model: Path, items: Path) -> dict[str, Any]:
    script = str(ROOT / "tests" / "engines" / "vllm_process.py")
    done = launch(python, script, str(model), str(items), cwd=items.parent, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    assert done.returncode == -signal.SIGKILL, done.stderr
    found: dict[str, Any] = json.loads(items.with_suffix(".result.json").read_text())
    return found


def match_rate(texts: list[str], others: list[str]) -> float:
    return sum(a == b for a, b in zip(texts, others, strict=True)) / len(texts)


@pytest.mark.slow
def test_vllm_matches_transformers_and_exits_with_its_killed_owner(
    small_run: Path, tmp_path: Path, warm_vllm: str
) -> None:
    config = RunConfig.model_validate(yaml.safe_load((small_run / "config.yaml").read_text()))
    splits = load(config.data, config.seed)
    jsonl.write([*splits.test, *splits.train][:100], tmp_path / "items.jsonl")
    found = compared(warm_vllm, small_run / "model", tmp_path / "items.jsonl")
    assert {"VLLM::EngineCor", "VLLM::Worker"} <= {name[:15] for name in found["processes"]}
    assert not psutil.wait_procs(processes_in(tmp_path), timeout=20)[1]
    texts, labels = found["texts"], found["labels"]
    assert found["positions"] == 1000  # of vllm's options, which reached it
    assert len(texts["vllm"]) == min(100, len(splits.test) + len(splits.train))
    # Two kernels may round a tie differently; a wrong weight or prompt would change nearly all.
    assert match_rate(texts["vllm"], texts["transformers"]) >= 0.98
    assert sum(map(bool, labels["vllm"])) >= 16
    for vllm, transformers in zip(labels["vllm"], labels["transformers"], strict=True):
        assert vllm == pytest.approx(transformers, abs=1e-4)


def test_torch_is_asked_for_a_gpu_without_starting_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else vLLM's engine core, which it forks, could not use CUDA (vllm#15951)."""
    monkeypatch.delenv(name := "PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    prepare()
    assert os.environ[name] == "1"


def test_aborted_vllm_completions_raise() -> None:
    def generate(prompts: list[Any], params: Any, use_tqdm: bool) -> list[SimpleNamespace]:
        completion = SimpleNamespace(token_ids=[5, 6], finish_reason="abort", logprobs=None)
        return [SimpleNamespace(outputs=[completion]) for _ in prompts]

    chat = Chat(a_tokenizer(), {}, frozenset({1}), None)
    engine = VLLMEngine(SimpleNamespace(generate=generate), chat)
    for ask in (
        lambda: engine.sample_tokens([[2, 3]], Sampling(max_completion_length=4)),
        lambda: engine.next_log_probs([[2, 3]], [[4]]),
    ):
        with pytest.raises(ModelError, match="vLLM was stopped"):
            ask()


@pytest.mark.slow
@pytest.mark.long
def test_quickstart_runs_with_vllm(small_run: Path, tmp_path: Path) -> None:
    # A judge that has the grammar: where all rewards are alike, there is nothing to compare.
    base = ["sft=null", "model.scratch=null", f"model.path={small_run / 'cold_start' / 'model'}"]
    words = [*(word for word in SMALL if not word.startswith(("sft.", "model."))), *base, "eval.max_items=4"]
    words += ["rollout=vllm", f"run.dir={tmp_path}", "run.name=vllm"]
    done = launch(command("tal"), "run", "recipes/quickstart.yaml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = [line for line in done.stdout.splitlines() if line]
    ours = ("test: ", "validation: ", "warning: ", "model ", "report ", "judgements ", "better ", "This judge", "Next:")
    assert all(line.startswith((*ours, "  tal ")) for line in printed)  # no logs of vLLM, DeepSpeed and torch
    assert f"model       {tmp_path}/vllm/model" in printed
    assert "Warning" not in done.stderr
    assert json.loads((tmp_path / "vllm" / "carb" / "step-2.json").read_text())["n"] == 4
    logged = [json.loads(line) for line in (tmp_path / "vllm" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in logged if "reward" in line]
    assert len(steps) == 2
    # vLLM's log-probabilities and the trainer's agree: TRL logs their difference.
    assert max(line["sampling/sampling_logp_difference/max"] for line in steps) < 1e-3
    assert all(line["rollout/sync_check_difference"] < 1e-3 for line in steps)


NAMES = [f"layers.{number}.{matrix}.weight" for number in range(2) for matrix in ("q_proj", "o_proj")]


def weights(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: (0.02 * torch.randn(64, 64, generator=generator)).to(dtype) for name in NAMES}


def engine(tensors: dict[str, Tensor], *, rows: slice = slice(None)) -> SimpleNamespace:
    """A worker with a part of each tensor."""
    model = nn.Module()
    model.named_parameters = lambda: ((name, tensor[:, rows]) for name, tensor in tensors.items())  # type: ignore[assignment,misc,return-value]
    return SimpleNamespace(get_model=lambda: model)


def sync(sent: SentTensors, tensors: dict[str, Tensor]) -> str:
    """The name of the tensor that is to be read back."""
    sent.begin()
    for name, tensor in tensors.items():
        sent.add(name, tensor)
    assert sent.request is not None
    return sent.request["name"]


def test_tensor_is_one_that_training_changed() -> None:
    sent, tensors = SentTensors("bfloat16"), weights()
    assert sync(sent, tensors) == NAMES[1]
    tensors[NAMES[3]] = tensors[NAMES[3]] + 0.01
    assert sync(sent, tensors) == NAMES[3]
    assert sent.expected == checksum(tensors[NAMES[3]])
    assert sync(sent, tensors) == NAMES[1]  # nothing has changed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_update_by_1e_6_that_did_not_arrive_is_found(dtype: torch.dtype, workers: int) -> None:
    sent, stale = SentTensors(str(dtype).removeprefix("torch.")), weights(dtype)
    sync(sent, stale)
    updated = {name: (tensor.float() + 1e-6).to(dtype) for name, tensor in stale.items()}
    name = sync(sent, updated)
    parts = [slice(first, first + 64 // workers) for first in range(0, 64, 64 // workers)]
    assert sent.request is not None
    found = {
        arrived: [read_checksum(engine(updated if arrived else stale, rows=part), sent.request) for part in parts]
        for arrived in (True, False)
    }
    assert check_sync(name, sent.expected, found[True], "here")
    with pytest.raises(TrainingError, match=name):
        check_sync(name, sent.expected, found[False], "here")


def test_whole_tensor_is_accepted_and_a_missing_one_unread() -> None:
    assert check_sync("o_proj", 7, [7, 7], "here")
    request = {"name": NAMES[1], "dtype": "bfloat16"}
    assert read_checksum(engine({}), request) is None  # type: ignore[arg-type]
    assert read_checksum(engine(weights(torch.float32)), request) is None  # type: ignore[arg-type]
    assert not check_sync(NAMES[1], 7, [None, None], "here")

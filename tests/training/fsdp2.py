"""FSDP2 as launch/gpu8_fsdp2.yaml asks for it, on the ranks of spread.py: accelerate takes their gloo group for GPUs.

By itself accelerate uses FSDP only on several GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import PartialState
from accelerate.utils import DistributedType
from conftest import ROOT
from safetensors import safe_open
from training import spread
from training.local_engine import LocalEngine
from training.small_grpo import figures, settings
from transformers import AutoModelForCausalLM, TrainerCallback

from think_as_locals.runtime.run_folder import StageFolder
from think_as_locals.training import grpo
from think_as_locals.training.checkpoints import save_model


class SyncBeforeTraining(TrainerCallback):
    """Syncs twice before the first step, as evaluations before training do."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._engine.sync_weights()
        self._engine.sync_weights()


class BetweenMicroSteps(TrainerCallback):
    """Notes in what form gradients wait for the next micro-step."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def on_substep_end(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        gradients = [each.grad for each in model.parameters() if each.requires_grad]
        self.found |= {f"{type(each).__name__} {getattr(each, 'dtype', '')}" for each in gradients}


COLOCATED = ["rollout=vllm_colocate", *spread.ONE_BATCH]


@contextmanager
def fsdp2_enabled() -> Iterator[None]:
    """Trainers that are made within are sharded by FSDP2."""
    settings = yaml.safe_load((ROOT / "launch" / "gpu8_fsdp2.yaml").read_text())["fsdp_config"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_FSDP", "true")
        for name, value in settings.items():
            patch.setenv(name.upper(), value if isinstance(value, str) else str(value).lower())
        patch.setattr(PartialState, "_prepare_backend", lambda *_, **__: ("gloo", DistributedType.MULTI_GPU))
        patch.setattr(PartialState, "set_device", lambda state: setattr(state, "device", torch.device("cpu")))
        yield


def whole(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.full_tensor().clone() for name, value in trainer.model.state_dict().items()}


def saved(trainer: Any, folder: Path, *overrides: str) -> tuple[str, dict[str, torch.Tensor]]:
    """The type that a model's config names, and its tensors in the file."""
    config, _ = settings(*overrides)
    output = StageFolder(folder / "saved")
    save_model(trainer, str(folder / "model"), config.model, output, AutoModelForCausalLM.from_pretrained)
    with safe_open(output.model / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return json.loads((output.model / "config.json").read_text())["dtype"], tensors


def check(folder: Path, url: str) -> dict[str, Any]:
    """What the test of spread.py is told: steps and whether prefixes are shared, resumed steps, types, syncs."""
    found: dict[str, Any] = {}
    with fsdp2_enabled():
        trainer = spread.make(folder)
        trainer.train()
        assert trainer.accelerator.is_fsdp2
        found["curve"], found["unshared"] = spread.curve(trainer), trainer.unshared_reason
        logged = {}
        for name in ("whole", "resumed"):
            trainer = spread.make(folder / "fsdp2_stopped", "grpo.save_steps=3")
            if checkpoint := trainer.checkpoints.latest():
                found["checkpoint"] = spread.tried(checkpoint, trainer)
            else:
                trainer.train()
            assert (checkpoint is None) == (name == "whole")
            logged[name] = figures(trainer), whole(trainer)
        found["resumed"] = logged["whole"][0] == logged["resumed"][0]
        found["same weights"] = all(
            torch.equal(value, logged["resumed"][1][name]) for name, value in logged["whole"][1].items()
        )
        half = ["model.dtype=bfloat16", "grpo.max_steps=1"]
        trainer = spread.make(folder, *half)
        trainer.add_callback(gradients := BetweenMicroSteps())
        trainer.train()
        found["gradients"], found["logits"] = sorted(gradients.found), str(head_logits(trainer).dtype)
        expected = whole(trainer)
        named, tensors = saved(trainer, folder / "fsdp2_half", *half)
        found["dtypes"] = [named, *sorted({str(value.dtype) for value in tensors.values()})]
        found["saved"] = all(torch.equal(value, expected[name].bfloat16()) for name, value in tensors.items())
        found["synced"] = synced(folder)
        found["lora"] = with_adapter(folder / "fsdp2_lora")
        found["ahead"] = spread.sampled_ahead(folder / "fsdp2_ahead", url)
    return found


def head_logits(trainer: Any) -> torch.Tensor:
    """Of a policy whose head is converted to float32."""
    with torch.no_grad():
        return trainer.model(input_ids=torch.arange(10, 30)[None]).logits


def with_adapter(folder: Path) -> dict[str, Any]:
    """The steps of an adapter, how far logits of the saved model are from the policy's, and differences after syncs."""
    trainer = spread.make(folder, *spread.LORA)
    trainer.train()
    expected = spread.logits(trainer.model)
    spread.save(trainer, folder / "model", spread.LORA, folder / "saved")
    PartialState().wait_for_everyone()
    difference = float((spread.logits(spread.plain(folder / "saved" / "model")) - expected).abs().max())
    return {"curve": spread.curve(trainer), "difference": difference, "synced": synced(folder, *spread.LORA)}


def synced(folder: Path, *overrides: str) -> list[float]:
    """Differences of log-probabilities after syncs: two without a step between them, then one in each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo, "ColocatedGeneration", LocalEngine)
        trainer = spread.sampling(folder, *COLOCATED, "grpo.max_steps=3", *overrides)
        assert isinstance(trainer.vllm_generation, LocalEngine)
        trainer.add_callback(SyncBeforeTraining(trainer.vllm_generation))
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}  # not sharded yet
        trainer.train()
    if overrides:  # an adapter: nothing else moves, whatever was merged for the engine
        assert all(torch.equal(value, before[name]) for name, value in whole(trainer).items() if "lora_" not in name)
    return [
        log["rollout/sync_check_difference"]
        for log in trainer.state.log_history
        if "rollout/sync_check_difference" in log
    ]

"""A loss or a gradient that is not finite ends the run, and its batch is kept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from training.small_grpo import poison_loss, tiny_trainer

from think_as_locals.types import TrainingError


@pytest.mark.slow
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_non_finite_loss_or_gradient_ends_run_before_optimizer_step(tmp_path: Path, what: str) -> None:
    trainer = tiny_trainer(tmp_path)
    if what == "loss":
        poison_loss(trainer)
    else:
        trainer.model.model.norm.weight.register_hook(lambda gradient: gradient + math.inf)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(
        TrainingError, match=rf"step 1: {what} not finite on rank 0; the optimizer did not use it"
    ) as caught:
        trainer.train()
    assert "grpo.learning_rate" in str(caught.value)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name])
    batch = safetensors.torch.load_file(tmp_path / "faults" / "step-1-rank-0.safetensors")
    assert batch["0/completion_ids"].shape[0] == 4
    assert {"0/prompt_ids", "0/advantages"} <= set(batch)
    about = json.loads((tmp_path / "faults" / "step-1-rank-0.json").read_text())
    assert about == {"fault": what, "step": 1, "rank": 0, "batch": "step-1-rank-0.safetensors"}

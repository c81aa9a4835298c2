"""A run resumed from any of its checkpoints ends with exactly the weights of an uninterrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.small_grpo import chance, figures, tiny_trainer

from think_as_locals.training.grpo import JudgeTrainer

pytestmark = pytest.mark.slow

FOUR_AN_EPOCH = "grpo.per_device_train_batch_size=16"
ACCUMULATED = ["grpo.gradient_accumulation_steps=2", "grpo.steps_per_generation=8", "grpo.logging_steps=3"]
RESUME_CASES = {  # steps, of which four are a sampling if several are, those that are resumed from, and overrides
    "on policy, past two epochs": (
        10,
        (1, 4, 9),
        [FOUR_AN_EPOCH, "grpo.max_grad_norm=0.5", "grpo.lr_scheduler_type=cosine"],
    ),
    "two steps a sampling, twice": (7, (1, 2, 3, 4), ["grpo.steps_per_generation=2", "grpo.num_iterations=2"]),
    "accumulated, logged rarely": (7, (1, 2, 3, 4), [*ACCUMULATED, "grpo.beta=0.1", "reward.both_orders=true"]),
}


def trained(folder: Path, steps: int, overrides: list[str], checkpoint: Path | None = None) -> JudgeTrainer:
    settings = [f"grpo.max_steps={steps}", "grpo.save_steps=1", f"grpo.save_total_limit={steps}", *overrides]
    size = "grpo.per_device_train_batch_size=8"
    trainer = tiny_trainer(folder, size, *settings, correctness=chance)
    if checkpoint is not None:
        trainer._save_checkpoint = lambda *_: None  # they are there already
    trainer.train_from(checkpoint)
    return trainer


@pytest.mark.parametrize(("steps", "resumed_from", "overrides"), RESUME_CASES.values(), ids=RESUME_CASES)
def test_resume_from_any_step_gives_bit_identical_final_weights(
    tmp_path: Path, steps: int, resumed_from: tuple[int, ...], overrides: list[str]
) -> None:
    whole = trained(tmp_path, steps, overrides)
    weights = whole.model.state_dict()
    for step in resumed_from:
        resumed = trained(tmp_path, steps, overrides, tmp_path / "checkpoints" / f"step-{step}")
        assert resumed.state.global_step == steps
        assert all(torch.equal(value, weights[name]) for name, value in resumed.model.state_dict().items()), step
        assert figures(resumed) == figures(whole), step
        assert resumed.rewards.parse_failures.batches == whole.rewards.parse_failures.batches > 1, step

"""Operations of a token, what a device reaches, and the tokens a second of updates that are logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from training.small_grpo import tiny_trainer

from think_as_locals.training.throughput import product_rate


def test_matrix_product_is_measured() -> None:
    assert 1e8 < product_rate("float32") < 1e16


def test_updates_log_tokens_a_second_and_mfu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = tiny_trainer(tmp_path, "rollout=transformers")
    assert trainer._product_rate is None  # a GPU's alone
    monkeypatch.setattr(trainer, "_product_rate", 1e12)
    trainer.train()
    operations = 6 * sum(parameter.numel() for parameter in trainer.model.parameters())
    steps = [log for log in trainer.state.log_history if "update/mfu" in log]
    assert len(steps) == 2
    for log in steps:
        assert log["update/mfu"] == pytest.approx(log["update/tokens_per_s"] * operations / 1e12)
    rates = [log["update/tokens_per_s"] for log in steps]
    assert trainer.num_updated_tokens / max(rates) < sum(log["step_time"] for log in steps)

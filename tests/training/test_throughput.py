"""Operations of a token, what a device reaches, and the tokens a second of updates that are logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from training.small_grpo import tiny_trainer

from think_as_locals.training.throughput import operations_per_token, product_rate


@pytest.mark.parametrize(
    ("parameters", "trained", "expected"), [(7.5e9, 7.5e9, 6 * 7.5e9), (7.08e9, 40e6, 4 * 7.08e9 + 2 * 40e6)]
)
def test_operations_follow_the_published_rule(parameters: float, trained: float, expected: float) -> None:
    assert operations_per_token(int(parameters), int(trained)) == expected


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

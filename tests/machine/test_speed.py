"""The tokens a second that a plan expects."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine.test_memory import ADAPTED, COUNTS, a_model, a_run

from think_as_locals.machine.speed import describe_speed, operations, product_rate


@pytest.mark.parametrize(
    ("counts", "checkpointing", "expected"),
    [  # 6 N, 2 N more where activations are computed again; frozen weights have no gradient: 4 N
        (COUNTS, "false", 6 * 7.5e9),
        (COUNTS, "true", 8 * 7.5e9),
        (ADAPTED, "false", 4 * 7.04e9 + 2 * 40e6),
    ],
)
def test_operations_follow_the_published_rule(counts: object, checkpointing: str, expected: float) -> None:
    assert operations(a_run(f"grpo.gradient_checkpointing={checkpointing}"), counts) == expected  # type: ignore[arg-type]


def test_plan_divides_what_this_machine_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_as_locals.machine.speed.product_rate", lambda dtype: 1e15)
    tokens = 1e15 / (8 * 7_615_616_512)
    assert f" {tokens:,.0f} tokens/s" in describe_speed(a_run(f"model.path={a_model(tmp_path)}"))
    assert describe_speed(a_run(f"model.path={tmp_path / 'none'}")).startswith("not known")


def test_matrix_product_is_measured() -> None:
    assert 1e8 < product_rate("float32") < 1e16

"""The memory and the tokens a second that a plan expects."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine.test_memory import ONE, a_model, a_run
from transformers import T5Config

from think_as_locals.machine.estimates import estimates


def test_plan_divides_what_this_machine_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_as_locals.machine.estimates.product_rate", lambda dtype: 1e15)
    tokens = 1e15 / (8 * 7_615_616_512)
    memory, speed = estimates(a_run(f"model.path={a_model(tmp_path)}"), ONE)
    assert memory[0] == "memory"
    assert f" {tokens:,.0f} tokens/s" in dict([speed])["speed"]


def test_plan_says_where_bfloat16_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("think_as_locals.machine.estimates.product_rate", {"float32": 2e11, "bfloat16": 8e11}.get)
    model = f"model.path={a_model(tmp_path)}"
    scratch = ("model=quickstart", "trainer=cold_start_grpo")
    plans = [estimates(a_run(*given), ONE) for given in ((model, "model.dtype=float32"), (model,), scratch)]
    assert ["bfloat16 is 4.0 times as fast" in dict(plan)["speed"] for plan in plans] == [True, False, False]


def test_model_of_another_kind_has_no_estimates(tmp_path: Path) -> None:
    T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2).save_pretrained(tmp_path)
    ((name, why),) = estimates(a_run(f"model.path={tmp_path}"), ONE)
    assert (name, "AutoModelForCausalLM" in why) == ("memory", True)

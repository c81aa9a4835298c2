"""The memory and the tokens a second that a plan expects, against published figures and PEFT."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from transformers import Qwen2Config, T5Config

from think_as_locals.config.checks import load_config, load_recipe
from think_as_locals.config.launch import Launch, read_launch
from think_as_locals.config.run_schema import RunConfig
from think_as_locals.config.scpo_schema import ScpoConfig
from think_as_locals.machine import estimates
from think_as_locals.machine.estimates import GB, Counts, count, estimate, memory_faults
from think_as_locals.types import ConfigError

ONE = Launch("NO", 0, 1)
EIGHT = Launch("DEEPSPEED", 3, 8)
COUNTS = Counts(7_500_000_000, 7_500_000_000, 4096, 32)
ADAPTED = Counts(7_040_000_000, 40_000_000, 4096, 32)


@cache
def a_run(*overrides: str) -> RunConfig:
    return load_recipe("recipes/tal_grpo.yaml", ["run.name=mine", *overrides])


def steered(*overrides: str) -> ScpoConfig:
    config = load_config("recipes/scpo_prism.yaml", ["run.name=mine", *overrides])
    assert isinstance(config, ScpoConfig)
    return config


def a_model(folder: Path) -> str:
    """The config.json of Qwen2.5-7B's architecture, as published; no weights."""
    sizes = {"hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28}
    Qwen2Config(vocab_size=152_064, num_key_value_heads=4, tie_word_embeddings=False, **sizes).save_pretrained(folder)
    return str(folder)


def test_parameters_and_those_of_an_adapter_are_counted_exactly(tmp_path: Path) -> None:
    path = f"model.path={a_model(tmp_path)}"
    assert count(a_run(path)) == Counts(7_615_616_512, 7_615_616_512, 3584, 28)
    heads, wide = 28 * 128, 4 * 128
    layer = 2 * (3584 + heads) + 2 * (3584 + wide) + 3 * (3584 + 18_944)  # q and o, k and v, the feed-forward ones
    assert count(a_run(path, "lora=rank16")) == Counts(7_615_616_512 + 448 * layer, 448 * layer, 3584, 28)


def test_model_of_another_kind_is_rejected(tmp_path: Path) -> None:
    T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="AutoModelForCausalLM"):
        count(a_run(path := f"model.path={tmp_path}"))
    ((name, why),) = estimates.estimates(a_run(path), ONE)
    assert (name, "AutoModelForCausalLM" in why) == ("memory", True)
    assert count(steered(path)).layers == 2


@pytest.mark.parametrize(
    ("launch", "gigabytes"),
    [  # figure 1 of the ZeRO paper: 7.5 B parameters on 64 GPUs; torch's own AdamW below
        (Launch("DEEPSPEED", 0, 64), (15, 15, 90)),
        (Launch("DEEPSPEED", 1, 64), (15, 15, 90 / 64)),
        (Launch("DEEPSPEED", 2, 64), (15, 15 / 64, 90 / 64)),
        (Launch("DEEPSPEED", 3, 64), (15 / 64, 15 / 64, 90 / 64)),
        (Launch("FSDP", 3, 64), (30 / 64, 30 / 64, 60 / 64)),
        (Launch("NO", 0, 1), (30, 30, 60)),
        (Launch("MULTI_GPU", 0, 64), (30, 60, 60)),
    ],
    ids=str,
)
def test_states_are_sharded_as_in_the_zero_paper(launch: Launch, gigabytes: tuple[float, ...]) -> None:
    parts = estimate(a_run(), launch, COUNTS)
    assert tuple(parts[name] / 1e9 for name in ("weights", "gradients", "optimizer")) == pytest.approx(gigabytes)


def test_frozen_weights_keep_their_type_under_an_adapter() -> None:
    for launch, adapter in ((Launch("FSDP", 3, 1), 4), (Launch("DEEPSPEED", 3, 1), 2), (Launch("NO", 0, 1), 4)):
        parts = estimate(a_run("lora=rank16"), launch, ADAPTED)
        assert parts["weights"] == 2 * 7e9 + adapter * 40e6


def test_adapter_and_scpo_count_their_own_states() -> None:
    parts = estimate(a_run("lora=rank16", "grpo.beta=0.1"), Launch("DEEPSPEED", 2, 8), ADAPTED)
    assert parts["weights"] == pytest.approx(7e9 * 2 + 4e7 * 4)
    assert parts["optimizer"] == pytest.approx(4e7 * 12 / 8)
    assert "reference model" not in parts
    assert estimate(a_run("grpo.beta=0.1"), EIGHT, COUNTS)["reference model"] == pytest.approx(15e9 / 8)
    parts = estimate(config := steered("scpo.max_length=512"), ONE, COUNTS)
    assert parts["global RM"] == parts["weights"] == 30e9
    longer = estimate(steered("scpo.max_length=1024"), ONE, COUNTS)
    assert longer["activations"] == 2 * parts["activations"]
    rows = 2 * config.scpo.per_device_train_batch_size * 512
    assert parts["activations"] % (rows * 4096) == 0


def test_checkpointing_keeps_the_input_of_each_layer_and_the_rest_of_one() -> None:
    plain = estimate(a_run("grpo.gradient_checkpointing=false"), EIGHT, COUNTS)["activations"]
    assert plain / estimate(a_run(), EIGHT, COUNTS)["activations"] == pytest.approx(32 * 17 / (32 + 17))


def test_run_is_refused_only_if_weights_and_optimizer_alone_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "count", lambda _: COUNTS)
    monkeypatch.setattr(estimates, "current_launch", lambda: replace(EIGHT, zero_stage=2))  # 15 and 90 / 8 GB
    for gigabytes, refused in ((None, False), (26, True), (27, False)):
        monkeypatch.setattr(estimates, "gpus", lambda size=gigabytes: [("a GPU", size * GB)] if size else [])
        assert bool(memory_faults(a_run())) == refused
    monkeypatch.setattr(estimates, "gpus", lambda: [("a GPU", 20 * GB)])
    assert "lora=rank16" in memory_faults(a_run())[0]


def test_plan_gives_the_memory_of_each_process_and_divides_what_this_machine_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "product_rate", lambda dtype: 1e15)
    tokens = 1e15 / (8 * 7_615_616_512)
    plan = dict(estimates.estimates(a_run(f"model.path={a_model(tmp_path)}"), read_launch("gpu8_zero3")))
    expected = "GB for each of 8 (launch/gpu8_zero3.yaml): weights 1.9, gradients 1.9, optimizer 11.4"
    assert expected in plan["memory"]
    assert f" {tokens:,.0f} tokens/s" in plan["speed"]


def test_plan_says_where_bfloat16_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "product_rate", {"float32": 2e11, "bfloat16": 8e11}.get)
    model = f"model.path={a_model(tmp_path)}"
    scratch = ("model=quickstart", "trainer=cold_start_grpo")
    plans = [estimates.estimates(a_run(*given), ONE) for given in ((model, "model.dtype=float32"), (model,), scratch)]
    assert ["bfloat16 is 4.0 times as fast" in dict(plan)["speed"] for plan in plans] == [True, False, False]

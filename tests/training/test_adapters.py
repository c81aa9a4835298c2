"""Adapters as engines receive them, merged or alone; the base model is never changed."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from think_as_locals.training.adapters import adapter_tensors, base_parameters, lora_unsupported_reason, save_adapter

UNSHARDED = nullcontext  # no parameter is sharded


def judge(num_hidden_layers: int = 2, tied: bool = True) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "head_dim": 16}
    more = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": tied}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **more, num_hidden_layers=num_hidden_layers))


@pytest.fixture
def adapted() -> PeftModel:
    """A tiny judge in half precision with an adapter that changes it."""
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    return get_peft_model(judge().to(torch.bfloat16), lora)


def digest(model: PeftModel) -> str:
    parameters = sorted((name, p) for name, p in model.named_parameters() if "lora_" not in name)
    return hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for _, p in parameters)).hexdigest()


def merged(model: PeftModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in base_parameters(model, UNSHARDED, merged=True)}


def assert_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_base_is_bit_identical_after_whole_and_aborted_syncs(adapted: PeftModel) -> None:
    before, first = digest(adapted), merged(adapted)
    for _ in range(99):
        for _ in base_parameters(adapted, UNSHARDED, merged=True):
            pass
    assert digest(adapted) == before
    assert not any(module.merged for module in adapted.modules() if hasattr(module, "lora_A"))
    assert_equal(merged(adapted), first)
    before, seen = digest(adapted), base_parameters(adapted, UNSHARDED, merged=True)
    while "q_proj" not in next(seen)[0]:
        pass
    seen.close()
    assert digest(adapted) == before


def test_merging_and_unmerging_with_peft_drifts(adapted: PeftModel) -> None:
    # Should this fail, merging and subtracting has become exact and `adapters.py` can go.
    before = digest(adapted)
    for _ in range(10):
        adapted.merge_adapter()
        adapted.unmerge_adapter()
    assert digest(adapted) != before


def test_merged_and_base_parameters_have_the_names_and_values_of_the_model(adapted: PeftModel) -> None:
    got = merged(adapted)
    assert_equal(got, dict(adapted.merge_and_unload().named_parameters()))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "moe_intermediate_size": 32, "head_dim": 16}
    experts = {"num_hidden_layers": 1, "num_experts": 4, "num_attention_heads": 2, "num_key_value_heads": 1}
    mixture = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts)).to(torch.bfloat16)
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    lora = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=targets, init_lora_weights=False)
    got = merged(adapted := get_peft_model(mixture, lora))
    assert_equal(got, dict(adapted.merge_and_unload().named_parameters()))


def test_adapter_alone_is_small_and_round_trips(adapted: PeftModel, tmp_path: Path) -> None:
    tensors = adapter_tensors(adapted, UNSHARDED)
    kinds = {name.rsplit(".", 2)[1] for name in tensors}
    assert kinds == {"lora_A", "lora_B"}
    per_layer = 4 * (32 + 32) + 4 * (64 + 32)  # q_proj and down_proj, rank 4
    assert sum(tensor.nbytes for tensor in tensors.values()) == 2 * per_layer * 4  # two layers, in float32
    save_adapter(adapted, tensors, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    expected = merged(adapted)
    assert_equal(merged(PeftModel.from_pretrained(judge().to(torch.bfloat16), str(tmp_path))), expected)


def test_base_parameters_exclude_the_adapter(adapted: PeftModel) -> None:
    base = {name: value.clone() for name, value in base_parameters(adapted, UNSHARDED)}
    assert_equal(base, dict(judge().to(torch.bfloat16).named_parameters()))


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ({}, None),
        ({"lora_dropout": 0.1, "target_modules": "all-linear"}, None),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens (Embedding)"),
        ({"target_modules": ["lm_head"]}, "lm_head (Linear)"),
        ({"r": 32}, "its rank is 32, the engine was started for ranks up to 16"),
        ({"target_modules": ["o_proj", "v_proj"]}, "the engine has no layers o_proj, v_proj"),
    ],
)
def test_lora_unsupported_reason_names_what_vllm_cannot_apply(adapter: dict[str, Any], reason: str | None) -> None:
    model = get_peft_model(judge(1, tied=False), LoraConfig(**{"target_modules": ["q_proj"], **adapter}))
    modules = ["q_proj", "k_proj", "gate_proj", "up_proj", "down_proj"]
    if adapter.get("target_modules") == "all-linear":
        modules += ["o_proj", "v_proj"]
    found = lora_unsupported_reason(model, {"rank": 16, "modules": modules})
    assert found is None if reason is None else reason in str(found)

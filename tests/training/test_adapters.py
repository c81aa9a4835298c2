"""An adapter on its way to an engine: merged there, and the base here as it was, however often."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from think_as_locals.training.adapters import merged_parameters


@pytest.fixture
def adapted() -> PeftModel:
    """A tiny judge in half precision with an adapter that changes it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "head_dim": 16}
    config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, use_dora=False)
    return get_peft_model(model, lora)


def digest(model: PeftModel) -> str:
    parameters = sorted((name, p) for name, p in model.named_parameters() if "lora_" not in name)
    return hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for _, p in parameters)).hexdigest()


def merged(model: PeftModel) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in merged_parameters(model, lambda _: nullcontext())}


def test_the_base_is_bit_for_bit_the_same_after_1000_syncs(adapted: PeftModel) -> None:
    before, first = digest(adapted), merged(adapted)
    for _ in range(999):
        for _ in merged_parameters(adapted, lambda _: nullcontext()):
            pass
    assert digest(adapted) == before
    assert not any(module.merged for module in adapted.modules() if hasattr(module, "lora_A"))
    assert all(torch.equal(value, first[name]) for name, value in merged(adapted).items())


def test_what_peft_does_instead_drifts(adapted: PeftModel) -> None:
    # Should this fail, merging and subtracting has become exact and `adapters.py` can go.
    before = digest(adapted)
    for _ in range(10):
        adapted.merge_adapter()
        adapted.unmerge_adapter()
    assert digest(adapted) != before


def test_names_and_values_are_those_of_the_merged_model(adapted: PeftModel) -> None:
    got = merged(adapted)
    expected = dict(adapted.merge_and_unload().named_parameters())
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_a_sync_that_is_broken_off_leaves_the_base_as_it_was(adapted: PeftModel) -> None:
    before, seen = digest(adapted), merged_parameters(adapted, lambda _: nullcontext())
    while "q_proj" not in next(seen)[0]:
        pass
    seen.close()
    assert digest(adapted) == before


def test_a_module_that_is_trained_whole_is_sent_under_its_own_name() -> None:
    torch.manual_seed(0)
    config: Any = Qwen3Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, vocab_size=64, head_dim=16, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    lora = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = get_peft_model(Qwen3ForCausalLM(config), lora)
    names = {name for name, _ in Qwen3ForCausalLM(config).named_parameters()}
    assert merged(model).keys() == names

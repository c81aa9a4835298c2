"""Packed rows against separate rows in every family of models that people train: numbers, gradients, and refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from engines.test_packed_passes import SIZES, VOCABULARY, model_of, separately
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.modeling_flash_attention_utils import FLASH_ATTN_KERNEL_FALLBACK
from transformers.modeling_utils import AttentionInterface
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from trl.trainer.utils import add_fused_lm_head

from think_as_locals.engines import packed_passes, packing, shared_layers

WINDOW = {"sliding_window": 6}
ALTERNATING = dict(WINDOW, layer_types=["sliding_attention", "full_attention"])
EXPERTS = {
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_dense_layers": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "q_lora_rank": None,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 4,
    "num_key_value_heads": 4,
}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
DELTA_NET = dict(
    LINEAR, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8
)
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_d_ssm": 64,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
}
NEMOTRON = dict(
    EXPERTS,
    layers_block_type=["linear_attention", "full_attention", "mlp", "moe"],
    num_hidden_layers=4,
    mamba_num_heads=8,
    mamba_head_dim=8,
    ssm_state_size=8,
    n_groups=1,
    chunk_size=8,
)
KIMI_LAYERS = {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4}
ZAMBA = dict(MAMBA, mamba_ngroups=1, n_mamba_heads=8, layers_block_type=["linear_attention", "hybrid"])
JAMBA = dict(EXPERTS, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4)
SHORT = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}

SHARED: dict[str, dict[str, Any]] = {
    # Full attention.
    **{name: {} for name in ("llama", "qwen2", "qwen3", "olmo2", "granite", "smollm3", "glm4", "ernie4_5")},
    **dict.fromkeys(("mixtral", "minimax_m2", "glm4_moe"), EXPERTS),
    "seed_oss": {"residual_dropout": 0.0, "attention_dropout": 0.0},
    "deepseek_v3": {**EXPERTS, **LATENT},
    # Sliding windows, in all layers or some.
    **dict.fromkeys(("mistral", "phi3", "starcoder2", "ministral3"), WINDOW),
    **dict.fromkeys(("olmo3", "cohere2", "exaone4", "ministral"), ALTERNATING),
    "afmoe": {**EXPERTS, **ALTERNATING},
    "gemma3_text": dict(ALTERNATING, query_pre_attn_scalar=8),
    "gemma4_text": dict(ALTERNATING, hidden_size_per_layer_input=4, global_head_dim=8, num_kv_shared_layers=0),
    # Soft caps, and attention sinks: eager attention.
    "gemma2": dict(ALTERNATING, query_pre_attn_scalar=8, attn_logit_softcapping=2.0),
    "gpt_oss": {**EXPERTS, **ALTERNATING},
    # Gated delta nets, Mamba, short convolutions.
    **dict.fromkeys(("qwen3_5_text", "olmo_hybrid"), DELTA_NET),
    **{name: {**EXPERTS, **DELTA_NET} for name in ("qwen3_next", "qwen3_5_moe_text")},
    "kimi_linear": dict({**EXPERTS, **LATENT, **LINEAR}, linear_attn_config=KIMI_LAYERS),
    "nemotron_h": NEMOTRON,
    "bamba": dict(MAMBA, attn_layer_indices=[1]),
    "granitemoehybrid": {**EXPERTS, **MAMBA, **LINEAR},
    "falcon_h1": MAMBA,
    "zamba2": ZAMBA,
    "jamba": JAMBA,
    "lfm2": SHORT,
    "lfm2_moe": {**EXPERTS, **SHORT},
}
"""Settings of a small model of each family, by its `model_type`."""

PROMPTS, COMPLETIONS = [17, 17, 17, 3, 3, 1, 8], [4, 9, 1, 1, 1, 5, 2]  # lengths; the window is 6


def family_config(family: str, **settings: Any) -> Any:
    ends = dict.fromkeys(["pad_token_id", "bos_token_id", "eos_token_id"])
    shape = dict(SIZES, initializer_range=0.1, max_position_embeddings=256, vocab_size_per_layer_input=VOCABULARY)
    return CONFIG_MAPPING[family](**{**shape, **ends, **SHARED.get(family, {}), **settings})


def family_model(family: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    kernel = "eager" if family in ("gemma2", "gpt_oss") else "sdpa"
    model = AutoModelForCausalLM.from_config(family_config(family, **settings), attn_implementation=kernel)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.float().train()


def rows() -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(1)

    def draw(length: int) -> Tensor:
        return torch.randint(0, VOCABULARY, (length,), generator=generator)

    drawn = {length: draw(length) for length in PROMPTS}
    return [drawn[length] for length in PROMPTS], [draw(length) for length in COMPLETIONS]


def gradients(model: nn.Module, values: Tensor) -> Tensor:
    model.zero_grad()
    (values * torch.linspace(-1, 1, len(values))).sum().backward()
    found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    return torch.cat([each.flatten() for each in found])


@pytest.mark.parametrize("family", SHARED)
def test_every_family_gives_the_numbers_of_separate_rows(family: str) -> None:
    model = family_model(family)
    prompts, completions = rows()
    alone = torch.cat(separately(model, prompts, completions))
    expected = gradients(model, alone)
    assert (shared_layers.unsupported_reason(model) or packed_passes.dropout_reason(model)) is None
    packed_passes.prepare(model)
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        values, entropies = packed_passes.log_probs(model, packing.pack(prompts, completions))
        torch.testing.assert_close(values, alone, atol=1e-5, rtol=1e-5)
        assert entropies is not None
        assert entropies.shape == values.shape
        assert (gradients(model, values) - expected).norm() <= 1e-5 * expected.norm()
    # Rows that are not packed are computed as before, also after packed ones.
    torch.testing.assert_close(torch.cat(separately(model, prompts, completions)), alone, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("llama4_text", {**EXPERTS, "attention_chunk_size": 6}, "layers of chunked_attention"),
        ("minimax", {**EXPERTS, **LINEAR, "block_size": 4}, "linear_attention take no state"),
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, r"dropout \(0.1\)"),
        ("seed_oss", {"residual_dropout": 0.2, "attention_dropout": 0.1}, r"dropout \(0.2\)"),
    ],
)
def test_what_cannot_be_shared_has_a_reason(family: str, settings: dict[str, Any], reason: str) -> None:
    model = family_model(family, **settings)
    found = shared_layers.unsupported_reason(model) or packed_passes.dropout_reason(model)
    assert found is not None
    assert re.search(reason, found)


def test_disabled_dropout_of_functions_is_no_reason() -> None:
    model = family_model("seed_oss", residual_dropout=0.2, attention_dropout=0.1)
    packed_passes.disable_functional_dropout(model)
    assert packed_passes.dropout_reason(model) is None
    assert torch.equal(*(model(input_ids=torch.arange(9)[None]).logits for _ in range(2)))


@pytest.mark.parametrize("grouped", [True, False])  # a kernel that takes fewer key heads than query heads, or not
def test_gradients_match_whatever_heads_a_kernel_takes(monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    monkeypatch.setattr(shared_layers, "_grouped_heads_are_fast", lambda query: grouped)
    dispatch, asked = CausalBias._dispatch, set[tuple[bool, bool]]()

    def watched(query: Tensor, key: Tensor, *rest: Any, **options: Any) -> Tensor:
        asked.add((key.shape[1] < query.shape[1], options["enable_gqa"]))
        return dispatch(query, key, *rest, **options)

    monkeypatch.setattr(CausalBias, "_dispatch", watched)
    model, (prompts, completions) = model_of(LlamaForCausalLM), rows()
    found = gradients(model, packed_passes.log_probs(model, packing.pack(prompts, completions))[0])
    expected = gradients(model, torch.cat(separately(model, prompts, completions)))
    assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert asked == {(grouped, grouped)}  # a kernel that does not take fewer key heads gets as many as query heads


@pytest.mark.parametrize(
    ("device", "dtype", "width", "fast"),
    [
        ("cpu", torch.float32, 512, True),
        ("meta", torch.float32, 8, False),
        ("meta", torch.bfloat16, 256, True),
        ("meta", torch.bfloat16, 257, False),
    ],
)
def test_grouped_heads_are_fast_only_on_supported_kernels(
    device: str, dtype: torch.dtype, width: int, fast: bool
) -> None:
    assert shared_layers._grouped_heads_are_fast(torch.empty(1, width, device=device, dtype=dtype)) is fast


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("kernels-community/flash-attn2", True),  # what transformers turns flash_attention_2 into
        (FLASH_ATTN_KERNEL_FALLBACK["flash_attention_3"], True),
        ("kernels-community/flash-attn2@main", True),
        ("kernels-community/flash-mla", False),
    ],
)
def test_hub_flash_attention_kernels_are_supported_by_name(name: str, shares: bool) -> None:
    model = model_of()
    model.config._attn_implementation = name
    assert (shared_layers.unsupported_reason(model) is None) is shares


def test_flash_kernel_receives_trunk_and_branches_as_batch_rows() -> None:
    """Such a kernel takes no mask and aligns causal attention to the end; it reads sequences off `position_ids`."""
    shapes = []

    def flash(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        assert mask is None
        assert "position_ids" not in kwargs  # they count on from the trunk: no beginning of a sequence is 0
        shapes.append((query.shape[0], query.shape[2], key.shape[2]))
        groups = query.shape[1] // key.shape[1]
        seen = torch.ones(query.shape[2], key.shape[2]).tril(key.shape[2] - query.shape[2]).bool()
        scores = query @ repeat_kv(key, groups).transpose(2, 3) * kwargs["scaling"]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return (weights @ repeat_kv(value, groups)).transpose(1, 2), None

    reference, model = model_of(), model_of()
    AttentionInterface.register("flash_for_test", shared_layers.PackedAttention("flash_for_test", flash))
    model.config._attn_implementation = "flash_for_test"
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in (7, 7, 7, 1)]
    prompts[1] = prompts[2] = prompts[0]
    completions = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in (4, 2, 5, 3)]
    packed = packing.pack(prompts, completions)
    assert packed.positions[0].tolist() == [*range(6), 6, 7, 8, 9, 6, 7, *range(6, 11), *range(3)]
    values, _ = packed_passes.log_probs(model, packed)
    # The trunk, in the first of two layers; its three branches padded to the longest, and a branch without a trunk.
    assert shapes == [(1, 6, 6), *([(3, 5, 11), (1, 3, 3)] * 2)]
    torch.testing.assert_close(values, torch.cat(separately(reference, prompts, completions)), atol=1e-5, rtol=1e-5)

"""Sampling with shared prompts and rows that leave: the tokens and scores of transformers' own loop."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import DynamicLayer

from think_as_locals.engines import packing
from think_as_locals.engines.decoding import GrowingLayer, generate, positions, sample_tokens
from think_as_locals.engines.transformers_engine import padded
from think_as_locals.types import ModelError

SIZES = {"vocab_size": 90, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}

with torch.random.fork_rng():
    torch.manual_seed(0)
    MODELS = {
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
        "sliding window, longer prompts": Qwen3ForCausalLM(
            Qwen3Config(**SIZES, head_dim=16, use_sliding_window=True, sliding_window=6, max_window_layers=1)
        ),
        "gemma 3": Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=6, pad_token_id=0)),
        "no cache of keys": MambaForCausalLM(MambaConfig(vocab_size=90, hidden_size=32, num_hidden_layers=2)),
        "adapter": get_peft_model(
            Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)), LoraConfig(r=4, init_lora_weights=False)
        ),
    }


ROWS = [[7, 8, 9], list(range(3, 14)), [7, 8], [7, 8, 9], list(range(3, 14)), [7, 8, 9], [5] * 6, [7, 8]]


def row_ends(rows: torch.Tensor, _: Any) -> torch.Tensor:
    """End a row of 11 prompt tokens after a number of tokens that depends on its prompt and first token."""
    return rows.shape[1] - 11 > (7 * rows[:, :11].sum(1) + 11 * rows[:, 11]) % 40


def test_sampling_from_scores_that_are_not_finite_is_a_model_error() -> None:
    model = deepcopy(MODELS["qwen3"])
    with torch.no_grad():
        model.lm_head.weight[7] = torch.nan
    ids, mask = padded([[5, 6], [5, 6]], "left")
    with pytest.raises(ModelError, match="scores of the next token are not finite"):
        generate(model, input_ids=ids, attention_mask=mask, generation_config=GenerationConfig(do_sample=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "top_k": 0, "temperature": 1.5}])
def test_decoding_equals_transformers_with_shared_prefill_and_finished_rows_removed(
    name: str, sampling: dict[str, Any]
) -> None:
    model = MODELS[name].eval().double()
    ids, mask = padded(ROWS, "left")
    rows = {"input_ids": ids, "attention_mask": mask, "stopping_criteria": [row_ends]}
    config = GenerationConfig(max_new_tokens=30, eos_token_id=2, pad_token_id=2, **sampling)
    read: list[tuple[int, ...]] = []
    once: list[bool] = []
    base = model.get_base_model() if name == "adapter" else model
    hooks = [
        base.get_input_embeddings().register_forward_pre_hook(lambda _, given: read.append(tuple(given[0].shape))),
        base.register_forward_pre_hook(lambda *given: once.append(packing.PROMPTS in given[2]), with_kwargs=True),
    ]
    torch.manual_seed(5)
    found = generate(model, **rows, generation_config=config)
    for hook in hooks:
        hook.remove()
    torch.manual_seed(5)
    expected = model.generate(**rows, generation_config=config)
    assert found.tolist() == expected.tolist()
    lengths = [
        next((n for n in range(1, 30) if row[10 + n] == 2 or row_ends(row[None, : 11 + n], None)), 30) for row in found
    ]
    assert len(set(lengths)) > 2
    if name == "no cache of keys":
        assert read == [(8, 11), *[(8, 1)] * (max(lengths) - 1)]
    else:
        assert read == [(4, 10), *((sum(n > step for n in lengths), 1) for step in range(max(lengths)))]
    assert any(once) == (name in ("qwen3", "adapter"))  # those without a window keep one copy of a prompt


@pytest.mark.parametrize("name", [name for name in MODELS if name != "no cache of keys"])
def test_log_probs_equal_a_full_forward_pass_when_rows_end_at_different_times(name: str) -> None:
    model = MODELS[name].eval().float()
    ids, mask = padded(ROWS, "left")
    steps: list[tuple[torch.Tensor, torch.Tensor]] = []
    generate(
        model,
        input_ids=ids,
        attention_mask=mask,
        stopping_criteria=[row_ends],
        generation_config=GenerationConfig(max_new_tokens=30, do_sample=True, top_k=0),
        logits_processor=[lambda rows, scores: steps.append((rows, scores)) or scores],
    )
    assert len({len(rows) for rows, _ in steps}) > 2
    masks = dict(zip(map(tuple, ids.tolist()), mask, strict=True))
    for rows, scores in steps:
        seen = torch.stack([masks[tuple(prompt)] for prompt in rows[:, :11].tolist()])
        seen = torch.cat([seen, torch.ones_like(rows[:, 11:])], 1)
        with torch.no_grad():
            full = model(input_ids=rows, attention_mask=seen, position_ids=positions(seen)).logits[:, -1]
        assert torch.allclose(scores.log_softmax(-1), full.log_softmax(-1), atol=1e-5)


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_half_precision_copies_the_prompt_for_each_row(weights: torch.dtype) -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)).eval().to(weights)
    ids, mask = padded(ROWS, "left")
    once: list[bool] = []
    model.register_forward_pre_hook(lambda *given: once.append(packing.PROMPTS in given[2]), with_kwargs=True)
    config = GenerationConfig(max_new_tokens=5, do_sample=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        assert generate(model, input_ids=ids, attention_mask=mask, generation_config=config).shape == (8, 16)
    assert once == [False] * 6


@pytest.mark.parametrize("search", [{"num_beams": 2}, {"guidance_scale": 1.5}, {"encoder_repetition_penalty": 1.5}])
def test_unsupported_searches_fall_back_to_transformers(search: dict[str, Any]) -> None:
    model = MODELS["qwen3"].eval().double()
    ids, mask = padded(ROWS, "left")
    config = GenerationConfig(max_new_tokens=10, eos_token_id=2, pad_token_id=2, do_sample=False, **search)
    rows = {"input_ids": ids, "attention_mask": mask, "generation_config": config}
    assert generate(model, **rows).tolist() == model.generate(**rows).tolist()


def test_large_heads_compute_parts_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES | {"vocab_size": 2500}, head_dim=16)).eval()
    ids, mask = padded(ROWS[:3], "left")
    config = GenerationConfig(max_new_tokens=3, do_sample=False)
    linear, widths, scores = torch.nn.functional.linear, list[int](), list[torch.Tensor]()
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *given: widths.append(len(given[1])) or linear(*given))
    rows = {"input_ids": ids, "attention_mask": mask, "generation_config": config}
    rows["logits_processor"] = [lambda _, given: scores.append(given) or given]
    generate(model, **rows)
    assert [width for width in widths if width > 64] == [1024, 1024, 452] * 3
    monkeypatch.undo()
    ours, scores[:] = list(scores), []
    model.generate(**rows)
    torch.testing.assert_close(ours, scores, rtol=0, atol=1e-5)


def test_growing_layer_equals_a_dynamic_layer_and_grows_in_place() -> None:
    ours, theirs, places, rows = GrowingLayer(), DynamicLayer(), [], 3
    for step in range(60):
        new = torch.randn(2, rows, 2, 1 if step else 8, 4)  # keys and values
        for found, expected in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(found, expected)
        places.append(ours.keys.data_ptr())
        if step == 4:
            rows = 6
            for layer in (ours, theirs):
                layer.batch_select_indices(torch.tensor([0, 0, 1, 1, 2, 0]))
        if step > 30 and step % 10 == 0:
            for layer in (ours, theirs):
                layer.batch_select_indices(torch.tensor([0, rows - 1, *range(2, rows - 1)]))
            rows -= 1
    assert len(set(places)) < 12


def test_prompts_that_differ_only_in_padding_are_not_shared() -> None:
    ids, mask = torch.arange(5, 9).repeat(2, 1), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    model = MODELS["qwen3"].eval().double()
    rows = torch.tensor([0, 1, 0])
    scores: list[torch.Tensor] = []
    generate(
        model,
        input_ids=ids[rows],
        attention_mask=mask[rows],
        generation_config=GenerationConfig(max_new_tokens=1, do_sample=False),
        logits_processor=[lambda _, given: scores.append(given) or given],
    )
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, position_ids=positions(mask)).logits[rows, -1]
    assert torch.allclose(scores[0].double(), expected, atol=1e-6)
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)


def test_tokens_and_random_state_are_those_of_multinomial() -> None:
    rows, count = torch.tensor([0, 2, 7]), 8
    for seed in range(20):
        torch.manual_seed(seed)
        probabilities = (3 * torch.randn(len(rows), 4000)).softmax(-1)
        everyone = torch.ones(count, 4000).index_copy(0, rows, probabilities)
        before = torch.get_rng_state()
        expected = everyone.multinomial(1)[rows, 0]
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        assert torch.equal(sample_tokens(probabilities, rows, count), expected)
        assert torch.equal(torch.get_rng_state(), after)

"""Packed rows hold a shared prompt once, and give the same scores and gradients as separate rows."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    GPT2ForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)
from trl.trainer.utils import add_fused_lm_head

from think_as_locals.engines import packed_passes, packing

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def model_of(family: type[PreTrainedModel] = Qwen3ForCausalLM) -> PreTrainedModel:
    """A small model, ready for packed rows."""
    torch.manual_seed(0)
    model = family._from_config(family.config_class(**SIZES), attn_implementation="sdpa")
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    packed_passes.prepare(model)
    return model


@cache
def classifier_of(family: type[PreTrainedModel]) -> PreTrainedModel:
    """A small classifier, ready for packed rows."""
    torch.manual_seed(0)
    config = family.config_class(**SIZES, num_labels=1, pad_token_id=None)
    model = family._from_config(config, attn_implementation="sdpa").eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel()), model_input_names=["input_ids"])
    assert packed_passes.prepare_classifier(model, tokenizer) is None
    return model


def separately(model: PreTrainedModel, prompts: list[Tensor], completions: list[Tensor]) -> list[Tensor]:
    """Log-probabilities of each completion from a plain forward pass of its own."""
    scored = []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0]
        predicted = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        scored.append(predicted.gather(1, completion[:, None])[:, 0])
    return scored


TOKENS = st.integers(0, VOCABULARY - 1)
sequences = st.lists(TOKENS, min_size=1, max_size=6)
batches = st.lists(
    st.tuples(sequences, st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=5), min_size=1, max_size=4)),
    min_size=1,
    max_size=3,
).filter(lambda groups: any(completion for _, group in groups for completion in group))


language_model = cache(model_of)


@settings(max_examples=60)
@given(groups=batches)
def test_packed_log_probs_match_separate_rows(groups: list[tuple[list[int], list[list[int]]]]) -> None:
    model = language_model()
    prompts = [torch.tensor(prompt) for prompt, group in groups for _ in group]
    completions = [torch.tensor(completion, dtype=torch.long) for _, group in groups for completion in group]
    packed = packing.pack(prompts, completions)
    values, entropies = packed_passes.log_probs(model, packed)
    with torch.no_grad():
        expected = torch.cat(separately(model, prompts, completions))
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
    assert entropies is not None
    assert entropies.shape == values.shape
    for row, column, label in zip(packed.rows, packed.columns, packed.labels[0], strict=True):
        assert completions[row][column] == label


@pytest.mark.parametrize("family", [Qwen3ForSequenceClassification, GPT2ForSequenceClassification])
@settings(max_examples=20)
@given(
    groups=st.lists(
        st.tuples(st.lists(TOKENS, max_size=9), st.lists(st.lists(TOKENS, min_size=1, max_size=6), min_size=1)),
        min_size=1,
        max_size=3,
    )
)
def test_packed_scores_and_gradients_match_separate_rows(
    family: type[PreTrainedModel], groups: list[tuple[list[int], list[list[int]]]]
) -> None:
    model = classifier_of(family)
    rows = [[prompt + response for response in group] for prompt, group in groups]
    found = packed_passes.scores(model, packing.pack_rows(rows, model.device))
    alone = [model(input_ids=torch.tensor([row])).logits[0, 0] for group in rows for row in group]
    gradients = []
    for values in (found, torch.stack(alone)):
        model.zero_grad()
        (values * torch.linspace(-1, 1.5, len(values))).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found, torch.stack(alone), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*gradients, atol=1e-5 * float(gradients[1].abs().max().clamp(min=1)), rtol=1e-4)


def test_prepared_model_is_unchanged_on_unpacked_rows() -> None:
    prepared, ids = model_of(), torch.arange(12).view(2, 6)
    packed_passes.prepare(prepared)  # as a second trainer of the same model does
    assert packed_passes.log_probs(prepared, packing.pack([ids[0]], [ids[1]]))[0].shape == (6,)
    plain = Qwen3ForCausalLM(prepared.config)
    plain.load_state_dict(prepared.state_dict())
    assert torch.equal(prepared(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_pack_stores_a_shared_prompt_once_and_wants_texts() -> None:
    prompt = torch.arange(10)
    packed = packing.pack([prompt] * 3, [torch.tensor([1, 2]), torch.tensor([], dtype=torch.long), torch.tensor([3])])
    assert packed.tokens.shape == (1, 9 + 2 + 1)
    assert packed.tokens[0, 9:].tolist() == [9, 1, 9]
    assert packed.positions[0, 9:].tolist() == [9, 10, 9]
    assert packed.rows.tolist() == [0, 0, 2]
    assert packed.columns.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="nothing to pack"):
        packing.pack([torch.tensor([1])], [torch.tensor([], dtype=torch.long)])
    with pytest.raises(ValueError, match="a prompt before each"):
        packing.pack([torch.tensor([], dtype=torch.long)], [torch.tensor([1])])


def test_pack_rows_stores_a_shared_prefix_once() -> None:
    packed = packing.pack_rows([[[1, 2, 3, 4], [1, 2, 5], [1, 2]], [[7]]], torch.device("cpu"))
    assert packed.tokens.tolist() == [[1, 2, 3, 4, 2, 5, 2, 7]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 1, 2, 1, 0]]
    assert packed.scored.tolist() == [3, 5, 6, 7]

"""Models as they come: habits of their own, no padding token, few positions, no head of a language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from reward_models.tiny import a_tokenizer, write_classifier, write_language_model, write_model
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

from think_as_locals.engines import Chat, Sampling, sample_all
from think_as_locals.engines.transformers_engine import GrowingLayer, TransformersEngine, generate, padded
from think_as_locals.types import ModelError, Rollout

SIZES = {"vocab_size": 90, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}
CONVERSATIONS = [[{"role": "user", "content": text}] for text in ("rice", "tea and bread", "soup in the morning")]
HABITS = {"repetition_penalty": 3.0, "min_new_tokens": 3, "bad_words_ids": [[5]], "no_repeat_ngram_size": 1}
SAMPLING_HABITS = {"do_sample": True, "temperature": 0.7, "top_p": 0.01, "top_k": 20}


def load(path: str) -> TransformersEngine:
    return TransformersEngine.load(path, dtype="float32", template_kwargs={}, batch_size=8)


def sampled(engine: TransformersEngine, temperature: float = 0.0) -> list[Rollout]:
    return sample_all(engine, CONVERSATIONS, Sampling(max_completion_length=30, temperature=temperature, seed=3))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    return load(write_language_model(tmp_path_factory.mktemp("plain"), seed=0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_models_own_generation_config_changes_nothing(
    plain: TransformersEngine, tmp_path: Path, temperature: float
) -> None:
    path = Path(write_language_model(tmp_path, seed=0))
    (path / "generation_config.json").write_text(json.dumps({**HABITS, **SAMPLING_HABITS}))
    engine = load(str(path))
    assert sampled(engine, temperature) == sampled(plain, temperature)
    assert engine.model.generation_config.repetition_penalty == 3.0  # which a trainer saves with the model


def test_a_tokenizer_without_padding_or_end_samples_the_same(plain: TransformersEngine, tmp_path: Path) -> None:
    tokenizer = a_tokenizer()
    tokenizer.pad_token = None
    path = write_model(tmp_path / "no_pad", Qwen3ForCausalLM, 0, tokenizer, max_position_embeddings=4096)
    assert sampled(load(path)) == sampled(plain)
    tokenizer.eos_token = None
    path = write_model(tmp_path / "no_end", Qwen3ForCausalLM, 0, tokenizer, max_position_embeddings=4096)
    assert {rollout.finish_reason for rollout in sampled(load(path))} == {"length"}


def test_a_completion_ends_with_the_models_positions(tmp_path: Path) -> None:
    path = write_model(tmp_path, Qwen3ForCausalLM, 0, a_tokenizer(), max_position_embeddings=30)
    engine = load(path)
    for prompt, rollout in zip(engine.chat.encode(CONVERSATIONS), sampled(engine), strict=True):
        assert (len(prompt) + len(rollout.token_ids), rollout.finish_reason) == (30, "length")


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


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "top_k": 0, "temperature": 1.5}])
def test_a_prompt_of_several_rows_is_read_once_and_the_tokens_are_the_same(name: str, sampling: dict[str, Any]) -> None:
    model = MODELS[name].eval().double()
    ids, mask = padded([[7, 8, 9], list(range(3, 14)), [7, 8], [7, 8, 9], list(range(3, 14)), [7, 8, 9]], "left")
    config = GenerationConfig(max_new_tokens=8, eos_token_id=2, pad_token_id=2, **sampling)
    read: list[tuple[int, ...]] = []
    seen = model.get_input_embeddings().register_forward_pre_hook(lambda _, given: read.append(tuple(given[0].shape)))
    torch.manual_seed(5)
    found = generate(model, input_ids=ids, attention_mask=mask, generation_config=config)
    seen.remove()
    assert read[:2] == ([(6, 11), (6, 1)] if name == "no cache of keys" else [(3, 10), (6, 1)])
    torch.manual_seed(5)
    expected = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    assert found.tolist() == expected.tolist()
    assert len(set(map(tuple, found[:, 11:].tolist()))) > 2


def test_keys_and_values_grow_in_place_and_are_those_of_a_dynamic_layer() -> None:
    ours, theirs, places = GrowingLayer(), DynamicLayer(), []
    for step in range(60):
        new = torch.randn(2, 3 if step < 5 else 6, 2, 1 if step else 8, 4)  # keys and values
        for found, expected in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(found, expected)
        places.append(ours.keys.data_ptr())
        if step == 4:
            for layer in (ours, theirs):
                layer.batch_select_indices(torch.tensor([0, 0, 1, 1, 2, 0]))
    assert len(set(places)) < 12


def test_prompts_that_differ_in_their_padding_alone_are_two() -> None:
    ids, mask = torch.full((2, 4), 5), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    model = MODELS["qwen3"].eval().double()
    config = GenerationConfig(max_new_tokens=1, output_logits=True, return_dict_in_generate=True, do_sample=False)
    rows = torch.tensor([0, 1, 0])
    options = {"input_ids": ids[rows], "attention_mask": mask[rows], "generation_config": config}
    (found,), (expected,) = generate(model, **options).logits, model.generate(**options).logits
    assert torch.allclose(found, expected, atol=1e-12)


def test_nothing_asked_is_nothing_sampled(plain: TransformersEngine) -> None:
    assert sample_all(plain, [], Sampling(max_completion_length=1)) == []


def test_a_classifier_and_a_model_without_template_are_no_judges(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lacks weights .* lm_head\.weight\. Is it a classifier"):
        load(write_classifier(tmp_path / "classifier"))
    tokenizer = a_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="has no chat template"):
        load(write_model(tmp_path / "base", Qwen3ForCausalLM, 0, tokenizer))


def test_rollouts_of_chats_that_declare_no_positions_are_as_long_as_asked(plain: TransformersEngine) -> None:
    shared = TransformersEngine(plain.model, Chat(plain.chat.tokenizer, {}, plain.chat.eos_token_ids), 8)
    assert sampled(shared) == sampled(plain)

"""The transformers engine with unusual models: own generation config, no padding token, few positions, no LM head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from reward_models.tiny import a_tokenizer, write_classifier, write_language_model, write_model
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, Qwen3ForCausalLM, set_seed

from think_as_locals.engines import Sampling, sample_all
from think_as_locals.engines.transformers_engine import TransformersEngine, padded
from think_as_locals.types import ModelError, Rollout

CONVERSATIONS = [[{"role": "user", "content": text}] for text in ("rice", "tea and bread", "soup in the morning")]
GENERATION_OVERRIDES = {
    "repetition_penalty": 3.0,
    "min_new_tokens": 3,
    "bad_words_ids": [[5]],
    "no_repeat_ngram_size": 1,
}
SAMPLING_OVERRIDES = {"do_sample": True, "temperature": 0.7, "top_p": 0.01, "top_k": 20}


def load(path: str) -> TransformersEngine:
    return TransformersEngine.load(path, dtype="float32", template_kwargs={}, batch_size=8)


def sampled(engine: TransformersEngine, temperature: float = 0.0) -> list[Rollout]:
    return sample_all(engine, CONVERSATIONS, Sampling(max_completion_length=30, temperature=temperature, seed=3))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    return load(write_language_model(tmp_path_factory.mktemp("plain"), seed=0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_config_of_the_model_is_ignored(
    plain: TransformersEngine, tmp_path: Path, temperature: float
) -> None:
    path = Path(write_language_model(tmp_path, seed=0))
    (path / "generation_config.json").write_text(json.dumps({**GENERATION_OVERRIDES, **SAMPLING_OVERRIDES}))
    engine = load(str(path))
    assert sampled(engine, temperature) == sampled(plain, temperature)
    assert engine.model.generation_config.repetition_penalty == 3.0  # which a trainer saves with the model


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("settings", [{}, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}])
def test_rows_of_one_prompt_share_its_prefill(tmp_path: Path, settings: dict[str, Any], temperature: float) -> None:
    """As long as all layers have full attention; the completions are those that `generate` samples by itself."""
    engine = load(write_model(tmp_path, Qwen3ForCausalLM, 0, a_tokenizer(), **settings))
    conversations = [CONVERSATIONS[i] for i in (0, 2, 0, 0, 2)]
    prompts = engine.chat.encode(conversations)
    sampling = Sampling(max_completion_length=9, temperature=temperature, seed=3)
    lengths: list[tuple[int, ...]] = []
    engine.model.model.register_forward_pre_hook(
        lambda _, __, given: lengths.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    found = engine.sample_tokens(prompts, sampling)
    longest = max(map(len, prompts))
    assert lengths[:2] == ([(5, longest), (5, 1)] if settings else [(2, longest - 1), (5, 1)])
    order = sorted(range(5), key=lambda i: len(prompts[i]))
    ids, mask = padded([prompts[i] for i in order], "left")
    set_seed(3)
    drawn = engine.model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=9,
        do_sample=temperature > 0,
        top_k=0,
        eos_token_id=None,
        pad_token_id=0,
    )[:, longest:].tolist()
    for row, i in zip(drawn, order, strict=True):
        assert row[: len(found[i])] == found[i]


def test_tokenizer_without_pad_or_eos_token_samples_the_same(plain: TransformersEngine, tmp_path: Path) -> None:
    tokenizer = a_tokenizer()
    tokenizer.pad_token = None
    path = write_model(tmp_path / "no_pad", Qwen3ForCausalLM, 0, tokenizer, max_position_embeddings=4096)
    assert sampled(load(path)) == sampled(plain)
    tokenizer.eos_token = None
    path = write_model(tmp_path / "no_end", Qwen3ForCausalLM, 0, tokenizer, max_position_embeddings=4096)
    with pytest.raises(ModelError, match="names no token that ends its turns"):
        load(path)


def test_each_completion_ends_at_max_position_embeddings(tmp_path: Path) -> None:
    path = write_model(tmp_path, Qwen3ForCausalLM, 0, a_tokenizer(), max_position_embeddings=30)
    engine = load(path)
    prompts = engine.chat.encode(CONVERSATIONS)
    assert len({len(prompt) for prompt in prompts}) > 1
    for prompt, rollout in zip(prompts, sampled(engine), strict=True):
        assert (len(prompt) + len(rollout.token_ids), rollout.finish_reason) == (30, "length")


def test_models_that_are_no_judges_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lacks weights .* lm_head\.weight; is it a classifier"):
        load(write_classifier(tmp_path / "classifier"))
    tokenizer = a_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="has no chat template"):
        load(write_model(tmp_path / "base", Qwen3ForCausalLM, 0, tokenizer))
    with pytest.raises(ModelError, match=r"weights that would not be read: score\.weight; is it a classifier"):
        load(write_classifier(tmp_path, tie_word_embeddings=True))


def test_tokenizer_with_more_tokens_than_embeddings_is_rejected(tmp_path: Path) -> None:
    write_language_model(tmp_path, seed=0)
    tokenizer = a_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image_soft_token>"]})  # Gemma 3's, which no text holds
    tokenizer.save_pretrained(tmp_path)
    assert sampled(load(str(tmp_path)))
    tokenizer.add_tokens(["breakfast"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"its tokenizer has token \d+, the model \d+ embeddings"):
        load(str(tmp_path))


def test_adapter_alone_keeps_the_soft_caps_of_its_base(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma2Config(**sizes, num_key_value_heads=1, head_dim=16, vocab_size=512, attn_logit_softcapping=1.0)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    for folder in ("base", "adapter"):
        a_tokenizer().save_pretrained(tmp_path / folder)
        assert load(str(tmp_path / folder)).model.config._attn_implementation == "eager"

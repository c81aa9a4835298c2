"""From-scratch judges: the tokenizer is lossless, and the same texts and seed make the same judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from items import RUBRIC
from reward_models.tiny import SIZES
from transformers import AutoModelForCausalLM, AutoTokenizer

from think_as_locals.engines import Chat
from think_as_locals.judging import write
from think_as_locals.reward_models.scratch import make_judge, train_tokenizer

TEXTS = [f"<response A>Rice number {i % 5} at dawn.</response>\n" + write(RUBRIC, "A: yes", 0) for i in range(50)]
TOKENIZER = train_tokenizer(TEXTS, num_subwords=300, num_phrases=40)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_tokenizer_round_trips_any_text(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_tokenizer_has_frequent_phrases_and_a_chat_template() -> None:
    assert TOKENIZER.tokenize("<rubric>") == ["<rubric>"]
    assert len(TOKENIZER.tokenize("Rice number 3 at dawn")) == 1
    special = Chat(TOKENIZER).special_tokens
    assert "<|end|>" in special
    assert not {"<rubric>", "Rice number 3 at dawn"} & {*special}
    messages = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}]
    assert TOKENIZER.apply_chat_template(messages, tokenize=False) == "<|user|>ask<|assistant|>say<|end|>"
    asked = TOKENIZER.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|user|>ask<|assistant|>"


def test_make_judge_is_deterministic_for_texts_and_seed(tmp_path: Path) -> None:
    sizes = SIZES.model_copy(update={"num_hidden_layers": 1, "num_phrases": 10})
    parameters = {make_judge(tmp_path / name, TEXTS, sizes, seed=3) for name in ("a", "b")}
    assert len(parameters) == 1
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert model.num_parameters() == parameters.pop()
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.06, rel=0.1)
    assert AutoTokenizer.from_pretrained(tmp_path / "a").eos_token_id == model.config.eos_token_id

"""Base models as they come: what a run asks of their tokenizer and template."""

from __future__ import annotations

from pathlib import Path

from conftest import ROOT
from models.tiny import a_tokenizer, an_item, write_model
from transformers import Qwen3ForCausalLM

from think_as_locals.config import load_recipe
from think_as_locals.training.grpo import _dataset, load_chat

REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
)


def test_a_base_model_without_system_turn_or_generation_config_is_asked_all_the_same(tmp_path: Path) -> None:
    tokenizer = a_tokenizer()
    tokenizer.chat_template = REFUSES
    path = write_model(tmp_path, Qwen3ForCausalLM, 0, tokenizer)
    (tmp_path / "generation_config.json").unlink()
    config = load_recipe(ROOT / "recipes" / "quickstart.yaml", ["prompt=listwise"])
    chat = load_chat(config, path)
    ((message,),) = _dataset(config, [(an_item(1), False)], chat)["prompt"]
    assert message["role"] == "user"
    assert chat.text([message], add_generation_prompt=False).startswith("<|user|>")

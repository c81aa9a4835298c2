"""How any tokenizer and template are called: control marks, system turns, ends, and models that cannot be asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from models.tiny import a_tokenizer, an_item

from think_as_locals.generation import Chat, eos_token_ids
from think_as_locals.judging import render

THINKS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"
)
REFUSES = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
)
DROPS = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ '<|' + m.role + '|>' + m.content }}{% endif %}{% endfor %}"
)


def chat(template: str, *added: str) -> Chat:
    tokenizer = a_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_tokens(list(added))
    return Chat(tokenizer)


@pytest.mark.parametrize("added", [("<think>", "</think>"), ()])
def test_marks_that_the_template_knows_are_control_tokens_special_or_not(added: tuple[str, ...]) -> None:
    thinking = chat(THINKS, *added, "<b>", "\n\n", "with palms")
    assert {"<think>", "</think>", "<|end|>"} <= set(thinking.special_tokens)
    assert not {"<b>", "\n\n", "with palms"} & set(thinking.special_tokens)
    assert "</think>" not in chat(REFUSES, *added).special_tokens


@pytest.mark.parametrize("template", [REFUSES, DROPS])
def test_a_system_turn_that_the_template_does_not_take_opens_the_users(template: str) -> None:
    system, user = render(an_item(1))
    text = chat(template).text([system, user], add_generation_prompt=False)
    assert text == f"<|user|>{system['content']}\n\n{user['content']}"


def test_a_system_turn_that_the_template_takes_stays_one() -> None:
    system, user = render(an_item(1))
    text = Chat(a_tokenizer()).text([system, user], add_generation_prompt=True)
    assert text == f"<|system|>{system['content']}<|user|>{user['content']}<|assistant|>"


def test_no_conversations_are_no_tokens() -> None:
    assert Chat(a_tokenizer()).encode([]) == []


@pytest.mark.parametrize(("declared", "own", "ends"), [(None, None, set()), (3, None, {3}), ([3, 4], 5, {3, 4, 5})])
def test_ends_are_those_that_are_known(declared: int | list[int] | None, own: int | None, ends: set[int]) -> None:
    config, tokenizer = SimpleNamespace(eos_token_id=declared), SimpleNamespace(eos_token_id=own)
    assert eos_token_ids(tokenizer, config) == ends


def test_a_large_vocabulary_of_control_tokens_is_listed_once() -> None:
    tokenizer = a_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<unused>"]})
    asked = Chat(tokenizer)
    assert asked.special_tokens is asked.special_tokens  # 20 ms for Gemma's, which each request would pay

"""Implicit rewards: equal to single forward passes, only over response tokens, with compatible models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reward_models.tiny import ITEMS, a_tokenizer, an_item, write_language_model, write_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from think_as_locals.reward_models.implicit import ImplicitRM
from think_as_locals.reward_models.scalar import IGNORED
from think_as_locals.reward_models.scratch import END, PAD
from think_as_locals.types import Item, ModelError


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return write_language_model(folder / "policy", seed=0), write_language_model(folder / "reference", seed=1)


def write(folder: Path, *tokens: str, template: str | None = "", pad: str | None = PAD, seed: int = 0) -> str:
    """A language model with a tokenizer that has more tokens, another template, or another padding token."""
    tokenizer = a_tokenizer()
    tokenizer.add_tokens(list(tokens))
    if template != "":
        tokenizer.chat_template = template
    tokenizer.pad_token = pad
    return write_model(folder, Qwen3ForCausalLM, seed, tokenizer)


def log_probs(path: str, item: Item, response: str) -> list[float]:
    """Of each token of a response and of its end, in a forward of its own."""
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path).eval()
    prompt = tokenizer(f"<|user|>{item.prompt}<|assistant|>")["input_ids"]
    ids = prompt + tokenizer(f"{response}<|end|>")["input_ids"]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    return [float(logits[i - 1].log_softmax(-1)[ids[i]]) for i in range(len(prompt), len(ids))]


@pytest.mark.parametrize(
    ("with_reference", "per_token", "beta"),
    [(True, False, 0.1), (True, True, 1.0), (False, False, 1.0), (False, True, 0.1)],
)
def test_scores_match_single_forward_passes(
    paths: tuple[str, str], with_reference: bool, per_token: bool, beta: float
) -> None:
    path, reference = paths
    items = ITEMS[:3]
    rm = ImplicitRM.load(path, reference if with_reference else None, beta=beta, per_token=per_token, batch_size=4)
    assert rm.identity != replace(rm, beta=2.0).identity
    for item, scores in zip(items, rm.score(items), strict=True):
        for response, score in zip(item.responses, scores, strict=True):
            policy = log_probs(path, item, response)
            total = sum(policy) - (sum(log_probs(reference, item, response)) if with_reference else 0)
            assert score == pytest.approx(beta * total / (len(policy) if per_token else 1), abs=1e-5)


def test_scores_and_verdicts_do_not_depend_on_batch_size_or_order(paths: tuple[str, str]) -> None:
    expected = dict(zip([i.id for i in ITEMS], ImplicitRM.load(*paths, batch_size=1).score(ITEMS), strict=True))
    for batch_size, items in ((3, ITEMS), (64, ITEMS[::-1])):
        for item, scores in zip(items, ImplicitRM.load(*paths, batch_size=batch_size).score(items), strict=True):
            assert scores == pytest.approx(expected[item.id], abs=1e-5)
            assert max(scores) == scores[expected[item.id].index(max(expected[item.id]))]


def test_token_spanning_prompt_and_response_counts_as_response(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role + ':\n' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
    )
    rm = ImplicitRM.load(write(tmp_path, "\n\n", template=template), None)
    item = replace(an_item(0, size=2), responses=("tea", "\nbread"))
    plain, joined = ([t for t in row["labels"] if t != IGNORED] for row in rm.rows(rm.requests(item)))
    assert rm.chat.tokenizer.decode(plain) == "tea"
    assert rm.chat.tokenizer.decode(joined) == "\n\nbread"


@pytest.mark.parametrize("prompt", ["{{ 'Assistant:' }}", "{{ '' }}"])
def test_template_that_hides_the_response_start_is_rejected(tmp_path: Path, prompt: str) -> None:
    template = "{% if add_generation_prompt %}" + prompt + "{% else %}{{ messages[-1].content }}{% endif %}"
    rm = ImplicitRM.load(write(tmp_path, template=template), None)
    with pytest.raises(ModelError, match=r"item 'item-0': the chat template .* template_kwargs"):
        rm.score([an_item(0)])


def test_only_padding_tokens_of_policy_and_reference_may_differ(tmp_path: Path, paths: tuple[str, str]) -> None:
    theirs = write(tmp_path / "plain", seed=1, pad=None)
    mine = write(tmp_path / "padded", pad="<|new pad|>")
    assert len(ImplicitRM.load(mine, theirs).score(ITEMS[:1])) == 1
    mine = write(tmp_path / "ends", pad=END)  # as trainers of DPO set it; the reference has none
    assert ImplicitRM.load(mine, theirs).score(ITEMS[:1]) == ImplicitRM.load(theirs, mine, beta=-0.1).score(ITEMS[:1])
    with pytest.raises(ModelError, match=r"have other tokens \('sawatdee'\)"):
        ImplicitRM.load(write(tmp_path / "other", "sawatdee"), paths[1])


def test_response_text_before_a_think_tag_is_not_hidden(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content.split('</think>')[-1] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    rm = ImplicitRM.load(write(tmp_path, "</think>", template=template), None)
    item = replace(an_item(0, size=2), responses=("poison</think>tea", "tea"))
    hidden, plain = (rm.chat.tokenizer.decode(row["input_ids"]) for row in rm.rows(rm.requests(item)))
    assert "poison" in hidden
    assert hidden != plain


def test_max_length_is_the_shorter_of_both_models(tmp_path: Path, paths: tuple[str, str]) -> None:
    short = write_language_model(tmp_path, seed=1, max_position_embeddings=64)
    assert ImplicitRM.load(paths[0], short).max_length == 64
    assert ImplicitRM.load(paths[0], None).max_length == 4096

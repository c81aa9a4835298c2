"""Tiny random models on disk, with a tokenizer of their own, and items for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from items import make_item
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from think_as_locals.config.schema import ScratchSection
from think_as_locals.engines import shared_layers
from think_as_locals.reward_models.scratch import train_tokenizer
from think_as_locals.types import Item

SIZES = ScratchSection(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    num_subwords=300,
    num_phrases=60,
    initializer_range=0.06,
)
"""Of a judge from scratch."""

_TEXT = "rice tea bread soup noodles a bow a wai two kisses with palms pressed in the morning for elders"
WORDS = _TEXT.split()


def an_item(number: int, size: int = 4) -> Item:
    """Responses of different lengths."""
    prompt = "What do people say" + " and do" * (number % 5) + f" on day {number}?"
    responses = tuple(" ".join(WORDS[number % 3 + i :][: 1 + i + number % 4]) for i in range(size))
    return make_item(id=f"item-{number}", prompt=prompt, responses=responses, group=f"group-{number % 3}")


ITEMS = [an_item(number, size=2 + number % 3) for number in range(9)]


def a_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, with a chat template."""
    return train_tokenizer([item.prompt for item in ITEMS] + WORDS, num_subwords=300, num_phrases=8)


def odd_tokenizer() -> PreTrainedTokenizerFast:
    """It reads `%` as a control token, and `¤` and `€` as a tag's ends."""
    odd = a_tokenizer()
    backend = odd.backend_tokenizer
    backend.add_special_tokens([AddedToken("<|stop|>", special=True, normalized=True)])
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(*pair) for pair in (("%", "<|stop|>"), ("¤", "<"), ("€", ">"))]
    )
    return odd


def write_model(folder: Path, kind: Any, seed: int, tokenizer: PreTrainedTokenizerFast, **settings: Any) -> str:
    """Weights of `kind` and a tokenizer; scores are wide apart, as initial weights are large."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    common = {"vocab_size": len(tokenizer), "max_position_embeddings": 256, "initializer_range": 0.3}
    kind(Qwen3Config(**{**sizes, **heads, **common, **settings})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_classifier(folder: Path, **settings: Any) -> str:
    """A classifier with one label."""
    return write_model(folder, Qwen3ForSequenceClassification, 0, a_tokenizer(), **{"num_labels": 1, **settings})


def write_language_model(folder: Path, seed: int, **settings: Any) -> str:
    """A language model: the same for the same seed."""
    return write_model(folder, Qwen3ForCausalLM, seed, a_tokenizer(), **{"max_position_embeddings": 4096, **settings})


def break_packing(patch: pytest.MonkeyPatch) -> None:
    """Have packed rows give other scores than separate ones."""

    def wrong(self: Any, module: Any, query: torch.Tensor, key: Any, value: Any, group: Any, _: Any) -> torch.Tensor:
        return query[:, :, group.branches].transpose(1, 2)

    patch.setattr(shared_layers.PackedAttention, "_branches", wrong)

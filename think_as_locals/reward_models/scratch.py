"""Small randomly initialised models: a Qwen3 architecture and a tokenizer trained on the texts it will process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    set_seed,
)

PAD, END = "<|pad|>", "<|end|>"
_TURNS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% if message.role == 'assistant' %}{{ '" + END + "' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# Phrases are separated by tags, line ends, colons and full stops: a fact, a question, a line of a rubric.
_BOUNDARY = r"(</?[a-z]+(?: [A-H])?>|\n|[:.?] ?)"


class Architecture(Protocol):
    """Sizes of the model: the `model.scratch` section of a run."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    num_subwords: int
    num_phrases: int
    initializer_range: float


def train_tokenizer(texts: Sequence[str], num_subwords: int, num_phrases: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer with a chat template; the same texts give the same tokenizer.

    Byte-level BPE encodes any text. The most frequent phrases are tokens of their own, so that a small judge need not
    spell them out (compare superword tokens, arXiv 2503.13423).
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = [PAD, END, *_TURNS.values()]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=num_subwords, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    phrases = Counter(phrase for text in texts for phrase in re.split(_BOUNDARY, text) if len(phrase) > 1)
    ranked = sorted(phrases, key=lambda phrase: (-phrases[phrase], phrase))
    bpe.add_tokens([AddedToken(phrase, normalized=False) for phrase in ranked[:num_phrases]])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(_TURNS.values()),
        padding_side="left",
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_judge(
    folder: Path, texts: Sequence[str], architecture: Architecture, seed: int, max_position_embeddings: int = 2048
) -> int:
    """Write an untrained judge into a folder, ready for `from_pretrained`; return its number of parameters."""
    settings = {"tie_word_embeddings": True, "max_position_embeddings": max_position_embeddings}
    return _make(Qwen3ForCausalLM, folder, texts, architecture, seed, settings)


def make_scalar_rm(
    folder: Path, texts: Sequence[str], architecture: Architecture, seed: int, max_position_embeddings: int = 2048
) -> int:
    """As `make_judge`, for a scalar reward model."""
    settings = {"num_labels": 1, "max_position_embeddings": max_position_embeddings}
    return _make(Qwen3ForSequenceClassification, folder, texts, architecture, seed, settings)


def _make(
    kind: type[Qwen3ForCausalLM | Qwen3ForSequenceClassification],
    folder: Path,
    texts: Sequence[str],
    architecture: Architecture,
    seed: int,
    settings: dict[str, int],
) -> int:
    tokenizer = train_tokenizer(texts, architecture.num_subwords, architecture.num_phrases)
    set_seed(seed)
    config = scratch_config(
        architecture,
        len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **settings,
    )
    model = kind(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def scratch_config(architecture: Architecture, vocab_size: int, **settings: Any) -> Qwen3Config:
    """Return the configuration of such a model."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_hidden_layers,
        num_attention_heads=architecture.num_attention_heads,
        num_key_value_heads=architecture.num_key_value_heads,
        head_dim=architecture.hidden_size // architecture.num_attention_heads,
        initializer_range=architecture.initializer_range,
        dtype=torch.float32,
        **settings,
    )

"""Randomly initialised models: small ones (Qwen3) with a tokenizer of their texts, and heads on pretrained ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    set_seed,
)

from think_as_locals.config.schema import ModelSection, ScratchSection
from think_as_locals.reward_models.scalar import HEADS
from think_as_locals.runtime.model_files import reading_model

PAD, END = "<|pad|>", "<|end|>"
_TURNS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% if message.role == 'assistant' %}{{ '" + END + "' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# Phrases are separated by tags, line ends, colons and full stops: a fact, a question, a line of a rubric.
_BOUNDARY = r"(</?[a-z]+(?: [A-H])?>|\n|[:.?] ?)"


def train_tokenizer(texts: Sequence[str], num_subwords: int, num_phrases: int) -> PreTrainedTokenizerFast:
    """Train byte-level BPE with frequent phrases as further tokens (compare superwords, arXiv 2503.13423)."""
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


def make_judge(folder: Path, texts: Sequence[str], sizes: ScratchSection, seed: int) -> int:
    """Write a randomly initialised judge into a folder, for `from_pretrained`; return its number of parameters."""
    return _make(Qwen3ForCausalLM, folder, texts, sizes, seed, tie_word_embeddings=True)


def make_scalar_rm(folder: Path, texts: Sequence[str], sizes: ScratchSection, seed: int) -> int:
    """Write a randomly initialised scalar reward model into a folder; return its number of parameters."""
    return _make(Qwen3ForSequenceClassification, folder, texts, sizes, seed, num_labels=1)


def add_head(folder: Path, base: ModelSection, seed: int) -> int:
    """Write a pretrained model into a folder, with a random head for one score if it has none; return its size."""
    source = {"pretrained_model_name_or_path": str(base.path), "revision": base.revision, "trust_remote_code": False}
    set_seed(seed)
    with reading_model(str(base.path)):
        tokenizer = AutoTokenizer.from_pretrained(**source)
        head: dict[str, Any] = {"num_labels": 1, "key_mapping": HEADS}
        model = AutoModelForSequenceClassification.from_pretrained(**source, **head, dtype=base.dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def _make(kind: Any, folder: Path, texts: Sequence[str], sizes: ScratchSection, seed: int, **settings: Any) -> int:
    tokenizer = train_tokenizer(texts, sizes.num_subwords, sizes.num_phrases)
    set_seed(seed)
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = kind(scratch_config(sizes, len(tokenizer), max_position_embeddings=2048, **ids, **settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def scratch_config(sizes: ScratchSection, vocab_size: int, **settings: Any) -> Qwen3Config:
    """Return the configuration of a randomly initialised model."""
    return Qwen3Config(
        vocab_size=vocab_size,
        head_dim=sizes.hidden_size // sizes.num_attention_heads,
        dtype=torch.float32,
        **sizes.model_dump(exclude={"num_subwords", "num_phrases"}),
        **settings,
    )

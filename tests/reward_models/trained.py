"""Small judges trained in seconds on the grammar only: their verdicts are arbitrary."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from reward_models.tiny import WORDS

from think_as_locals.config.schema import ScratchSection
from think_as_locals.engines import Messages
from think_as_locals.engines.transformers_engine import TransformersEngine
from think_as_locals.reward_models.group import PolicyPrompt, item_of
from think_as_locals.reward_models.judge import JudgeSettings
from think_as_locals.reward_models.scalar import IGNORED, TokenRow, padded_batch
from think_as_locals.reward_models.scratch import make_judge
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

WIDE = SIZES.model_copy(update={"hidden_size": 64})
"""The narrowest that vLLM has an attention kernel for on CPU."""


def load(path: Path, batch_size: int) -> TransformersEngine:
    return TransformersEngine.load(str(path), dtype="float32", template_kwargs={}, batch_size=batch_size)


def train_judge(
    path: Path, pairs: Sequence[tuple[Messages, str]], settings: JudgeSettings, sizes: ScratchSection = SIZES
) -> None:
    """Write a judge that was taught what to answer to messages, a third of them in each of 60 steps."""
    make_judge(path, [asked[0]["content"] + answer for asked, answer in pairs], sizes, seed=1)
    engine = load(path, batch_size=8)
    tokenizer, model = engine.chat.tokenizer, engine.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    prompts = engine.chat.encode([asked for asked, _ in pairs])
    answers = tokenizer([text + "<|end|>" for _, text in pairs], add_special_tokens=False)["input_ids"]
    rows: list[TokenRow] = [
        {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    for step in range(60):
        model(**padded_batch(rows[step % 3 :: 3], pad_id=0, device="cpu")).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    settings.save(path)


def pairs(count: int, seed: int = 0) -> list[Item]:
    """Questions with two responses such as an untrained policy writes."""
    source = random.Random(seed)
    characters = [chr(code) for code in (*range(33, 127), *range(128, 256))]

    def noise() -> str:
        return " ".join(source.choice(WORDS) + "".join(source.choices(characters, k=2)) for _ in range(5))

    return [
        item_of(PolicyPrompt(f"What is said on day {i % 4}?", "TH", "en"), (noise(), noise())) for i in range(count)
    ]

"""Rollouts from transformers' generate: needs nothing but the model, and shares it with a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, set_seed

from think_as_locals.generation.engine import Chat, Messages, Sampling, eos_token_ids
from think_as_locals.types import Rollout


@dataclass(frozen=True, slots=True)
class TransformersEngine:
    """Batches prompts of like length, left-padded."""

    model: Any
    chat: Chat
    batch_size: int

    @classmethod
    def load(
        cls, path: str, *, dtype: str, template_kwargs: Mapping[str, Any], batch_size: int, revision: str | None = None
    ) -> TransformersEngine:
        """Load a judge from a directory or the Hub."""
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, padding_side="left")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=dtype).to(device).eval()
        return cls(
            model, Chat(tokenizer, template_kwargs, eos_token_ids(tokenizer, model.generation_config)), batch_size
        )

    def generate(self, conversations: Sequence[Messages], sampling: Sampling) -> list[Rollout]:
        """One rollout for each conversation, in their order."""
        prompts = self.chat.encode(conversations)
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        rollouts: dict[int, Rollout] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            for start in range(0, len(by_length), self.batch_size):
                indices = by_length[start : start + self.batch_size]
                sampled = self._sample([prompts[i] for i in indices], sampling)
                rollouts.update((i, self.chat.rollout(ids)) for i, ids in zip(indices, sampled, strict=True))
        finally:
            self.model.train(was_training)
        return [rollouts[i] for i in range(len(prompts))]

    def _sample(self, prompts: list[list[int]], sampling: Sampling) -> list[list[int]]:
        batch = self.chat.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(
            self.model.device
        )
        greedy = sampling.temperature == 0
        config = GenerationConfig(
            max_new_tokens=sampling.max_completion_length,
            do_sample=not greedy,
            eos_token_id=sorted(self.chat.eos_token_ids),
            pad_token_id=self.chat.tokenizer.pad_token_id,
            **({} if greedy else {"temperature": sampling.temperature, "top_k": 0}),
        )
        if not greedy:
            set_seed(sampling.seed)
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                generation_config=config,
                use_cache=True,
                synced_gpus=False,  # else, under ZeRO-3, every rank would need as many batches as the others
            )
        completions: list[list[int]] = output[:, batch["input_ids"].shape[1] :].tolist()
        return completions

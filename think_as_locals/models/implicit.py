"""Language models trained by DPO as reward models (arXiv 2305.18290): what they find likelier than their reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from think_as_locals.generation import Chat
from think_as_locals.generation.engine import expect_template, expect_weights
from think_as_locals.models.reward_model import Request
from think_as_locals.models.scoring import (
    IGNORED,
    BatchScorer,
    Row,
    conversations,
    load_model,
    longest,
    padded,
    template,
    weights_of,
)
from think_as_locals.types import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitRM(BatchScorer):
    """Score of response y to prompt x: beta * (log pi(y|x) - log pi_ref(y|x)), summed over the tokens of y.

    The tokens of y are those behind the chat template's generation prompt, its end of turn included; a token that joins
    the end of that prompt to the start of the response is the response's. Without a reference the score is
    beta * log pi(y|x), as in RewardBench (arXiv 2403.13787), where the mean over tokens is usual: a sum favours short
    responses.

    Args:
        reference_path: Where the reference is from.
        reference: The model that the policy was trained away from, with the same tokenizer; or none.
        beta: The strength of the penalty in training; scales scores and margins, and leaves verdicts alone.
        per_token: Whether to take the mean over the tokens of y.
    """

    reference_path: str | None
    reference: Any | None
    beta: float
    per_token: bool

    @classmethod
    def load(
        cls,
        path: str,
        reference: str | None,
        *,
        beta: float = 0.1,
        per_token: bool = False,
        dtype: str = "auto",
        batch_size: int = 16,
        chunk_size: int = 1024,
        max_length: int | None = None,
        revision: str | None = None,
        reference_revision: str | None = None,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        seed: int = 0,
    ) -> ImplicitRM:
        """Load policy and reference from directories or the Hub.

        Args:
            path: Directory or Hub id of the policy; its chat template serves both.
            reference: Directory or Hub id of the reference; `None` for none.
            beta: As above.
            per_token: As above.
            dtype: Type of the weights.
            batch_size: Responses at a time.
            chunk_size: As `RewardModel.chunk_size`.
            max_length: Tokens of prompt and response together; `None` for what both models declare.
            revision: Commit, tag or branch of the policy on the Hub.
            reference_revision: The same of the reference.
            template_kwargs: Passed to the chat template.
            seed: As `ResponseScorer.seed`.

        Raises:
            ModelError: weights are missing, the policy has no chat template, or the two have other tokens.
        """
        revisions = revision, reference_revision
        model, other, tokenizer, limit = _load_both(path, reference, revisions, dtype, max_length)
        return cls(
            path=path,
            model=model,
            chat=Chat(tokenizer, template_kwargs),
            reference_path=reference,
            reference=other,
            beta=beta,
            per_token=per_token,
            batch_size=batch_size,
            chunk_size=chunk_size,
            max_length=limit,
            seed=seed,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """As `RewardModel.identity`."""
        reference = None if self.reference_path is None else weights_of(self.reference_path, self.reference)
        return {
            "kind": "implicit",
            "weights": weights_of(self.path, self.model),
            "reference": reference,
            "dtype": str(self.model.dtype),
            "beta": self.beta,
            "per_token": self.per_token,
            **template(self.chat),
        }

    def rows(self, requests: Sequence[Request]) -> list[Row]:
        turns = conversations(requests, self.chat.special_tokens)
        prompts = [self.chat.text(messages[:1], add_generation_prompt=True) for messages in turns]
        texts = [self.chat.text(messages, add_generation_prompt=False) for messages in turns]
        for request, prompt, text in zip(requests, prompts, texts, strict=True):
            if not prompt or not text.startswith(prompt):
                raise ModelError(
                    f"item {request.item.id!r}: the chat template of {self.path} writes the prompt otherwise where a "
                    f"response follows, so what the response is cannot be told: expected {prompt[-80:]!r} in front of "
                    f"it, got {text[:300]!r}. template_kwargs (of conf/rm: "
                    "chat_template_kwargs) may mend that, such as enable_thinking"
                )
        encoded = (self.chat.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompts, texts))
        return [_row(prompt_ids, ids) for prompt_ids, ids in zip(*encoded, strict=True)]

    def _scores(self, rows: Sequence[Row]) -> torch.Tensor:
        batch = padded(
            rows, pad_id=0, device=self.model.device
        )  # any token will do: none that counts sees what comes behind it
        labels = batch.pop("labels")
        scores = _log_probs(self.model, batch, labels)
        if self.reference is not None:
            scores = scores - _log_probs(self.reference, batch, labels)
        if self.per_token:
            scores = scores / (labels != IGNORED).sum(dim=1)
        return self.beta * scores


def _row(prompt_ids: list[int], ids: list[int]) -> Row:
    """A prompt with its response, the response's tokens as labels."""
    pairs = enumerate(zip(prompt_ids, ids, strict=False))
    start = next((i for i, (alone, followed) in pairs if alone != followed), len(prompt_ids))
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [IGNORED] * start + ids[start:]}


def _log_probs(model: Any, batch: Mapping[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Log-probability of each row's labels (B,), given what stands before them."""
    first = int((labels != IGNORED).any(dim=0).int().argmax())
    kept = labels.size(1) - first + 1  # the token before the first label predicts it; the rest needs no logits
    logits = model(**batch, logits_to_keep=kept).logits[:, -kept:-1].float()
    targets = labels[:, first:]
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return -losses.view_as(targets).double().sum(dim=1)


def _load_both(
    path: str, reference: str | None, revisions: tuple[str | None, str | None], dtype: str, max_length: int | None
) -> tuple[Any, Any | None, Any, int]:
    """Policy, reference, the tokenizer that both have, and the tokens that both take."""
    model, tokenizer, limit = _load(path, dtype, revisions[0], max_length)
    expect_template(path, tokenizer)
    if reference is None:
        return model, None, tokenizer, limit
    other, tokens, other_limit = _load(reference, dtype, revisions[1], max_length)
    _expect_same_tokens(path, tokenizer, reference, tokens)
    return model, other, tokenizer, min(limit, other_limit)


def _load(path: str, dtype: str, revision: str | None, max_length: int | None) -> tuple[Any, Any, int]:
    model, missing = load_model(AutoModelForCausalLM, path, revision=revision, dtype=dtype)
    expect_weights(path, missing)
    tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
    return model, tokenizer, longest(path, model, tokenizer, max_length)


def _expect_same_tokens(path: str, mine: Any, reference: str, theirs: Any) -> None:
    """A padding token that only one of them has may differ: such are often added in training, and not used here."""
    vocabularies = mine.get_vocab(), theirs.get_vocab()
    added = {
        tokenizer.pad_token
        for tokenizer, others in zip((mine, theirs), vocabularies[::-1], strict=True)
        if tokenizer.pad_token not in others
    }
    other = {token for token, _ in vocabularies[0].items() ^ vocabularies[1].items()} - added
    if other:
        raise ModelError(
            f"{path} and its reference {reference} have other tokens ({', '.join(map(repr, sorted(other)[:5]))}): "
            "log-probabilities compare only where both read the same; give the model that the policy was trained from"
        )

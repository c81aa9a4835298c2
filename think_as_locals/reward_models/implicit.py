"""Language models trained by DPO as implicit reward models (arXiv 2305.18290)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from think_as_locals.engines import Chat
from think_as_locals.engines.engine import require_chat_template
from think_as_locals.engines.transformers_engine import load_language_model, require_embeddings
from think_as_locals.reward_models.reward_model import Request, identify_weights
from think_as_locals.reward_models.scalar import IGNORED, BatchScorer, TokenRow, padded_batch, resolve_max_length
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.types import ModelError, first_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitRM(BatchScorer):
    """Score of response y to prompt x: beta * (log pi(y|x) - log pi_ref(y|x)), summed over the tokens of y.

    The tokens of y are those after the chat template's generation prompt, including the end of turn; a token that
    spans the end of that prompt and the start of the response belongs to the response. Without a reference the score is
    beta * log pi(y|x), as in RewardBench (arXiv 2403.13787), where the mean over tokens is usual: a sum favours short
    responses.

    Args:
        reference: The model that the policy was trained from, with the same tokenizer, loaded from `reference_path`.
        beta: The KL penalty in training; scales scores, and does not change verdicts.
        per_token: Whether to take the mean over the tokens of y.
    """

    reference_path: str | None
    reference: Any | None
    beta: float = 0.1
    per_token: bool = False

    @classmethod
    def load(
        cls,
        path: str,
        reference: str | None,
        *,
        dtype: str = "auto",
        max_length: int | None = None,
        device_map: str | None = None,
        revision: str | None = None,
        reference_revision: str | None = None,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> ImplicitRM:
        """Load policy and reference from directories or the Hub; a ModelError says if they do not go together.

        The policy's chat template is used for both, and the smaller of both maximum lengths. Other arguments are those
        of `ScalarRM.load`, and `beta` and `per_token`.
        """
        model, tokenizer, limit = _load_policy(path, dtype, device_map, revision, max_length)
        require_chat_template(path, tokenizer)
        other = None
        if reference is not None:
            other, its_tokenizer, its_limit = _load_policy(reference, dtype, device_map, reference_revision, max_length)
            ours, theirs = tokenizer.get_vocab(), its_tokenizer.get_vocab()
            padding = {tokenizer.pad_token} - theirs.keys() | {its_tokenizer.pad_token} - ours.keys()
            if differing := {token for token, _ in ours.items() ^ theirs.items()} - padding:
                raise ModelError(
                    f"{path} and its reference {reference} have other tokens "
                    f"({first_of(map(repr, sorted(differing)), 5)}): log-probabilities compare only where both read "
                    "the same; give the model that the policy was trained from"
                )
            limit = min(limit, its_limit)
        settings |= {"reference_path": reference, "reference": other}
        return cls(path=path, model=model, chat=Chat(tokenizer, template_kwargs), max_length=limit, **settings)

    @property
    def identity(self) -> dict[str, Any]:
        reference = self.reference and identify_weights(str(self.reference_path), self.reference.config._commit_hash)
        settings = {"reference": reference, "beta": self.beta, "per_token": self.per_token}
        return {"kind": "implicit", **settings, **self._identity}

    def rows(self, requests: Sequence[Request]) -> list[TokenRow]:
        turns = self._turns(requests)
        prompts = [self.chat.text(messages[:-1], add_generation_prompt=True) for messages in turns]
        texts = [self.chat.text(messages, add_generation_prompt=False) for messages in turns]
        for request, prompt, text in zip(requests, prompts, texts, strict=True):
            if not prompt or not text.startswith(prompt):
                raise ModelError(
                    f"item {request.item.id!r}: the chat template of {self.path} writes the prompt differently if a "
                    f"response follows, so where the response begins is unknown: expected {prompt[-80:]!r} before it, "
                    f"got {text[:300]!r}. template_kwargs (of conf/rm: chat_template_kwargs) may help, such as "
                    "enable_thinking"
                )
        alone, followed = (
            self.chat.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompts, texts)
        )
        rows = []
        for prompt_ids, ids in zip(alone, followed, strict=True):
            pairs = enumerate(zip(prompt_ids, ids, strict=False))
            start = next((i for i, (one, other) in pairs if one != other), len(prompt_ids))
            labels = [IGNORED] * start + ids[start:]
            rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels})
        return rows

    def _scores(self, rows: Sequence[TokenRow]) -> torch.Tensor:
        batch = padded_batch(rows, pad_id=0, device=self.model.device)  # any token will do: no counted token sees it
        labels = batch.pop("labels")
        scores = _log_probs(self.model, batch, labels)
        if self.reference is not None:
            scores = scores - _log_probs(self.reference, batch, labels)
        if self.per_token:
            scores = scores / (labels != IGNORED).sum(dim=1)
        return self.beta * scores


def _log_probs(model: Any, batch: Mapping[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities of each row's labels, summed (B,)."""
    first = int((labels != IGNORED).any(dim=0).int().argmax())
    kept = labels.size(1) - first + 1  # the token before the first label predicts it; the rest needs no logits
    logits = model(**batch, logits_to_keep=kept).logits[:, -kept:-1].float()
    targets = labels[:, first:]
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return -losses.view_as(targets).double().sum(dim=1)


def _load_policy(
    path: str, dtype: str, device_map: str | None, revision: str | None, max_length: int | None
) -> tuple[Any, Any, int]:
    model = load_language_model(path, dtype, revision, device_map)
    model.config.get_text_config().use_cache = False  # keys and values that no later token would read
    with reading_model(path):
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
    require_embeddings(path, model, tokenizer)
    return model, tokenizer, resolve_max_length(path, model, tokenizer, max_length)

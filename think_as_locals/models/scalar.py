"""Classifiers as reward models: AutoModelForSequenceClassification with one label, the score of a response."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from think_as_locals.generation import Chat
from think_as_locals.models.reward_model import Request
from think_as_locals.models.scoring import (
    BatchScorer,
    Row,
    conversations,
    load_model,
    longest,
    padded,
    template,
    unused_end,
    weights_of,
)
from think_as_locals.types import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRM(BatchScorer):
    """A classifier: prompt and response by its chat template, or as a text pair where it has none, to one score.

    A decoder's head reads the last token that is not the padding token its configuration declares, also where a text
    ends with that token, as in training; where none is declared, it reads the last token.

    Args:
        pad_id: The padding token that the model declares.
        new_head_seed: Seed of a random head, where one was asked for.

    Example:
        rm = ScalarRM.load("path-or-hub-id")
        rm.score([item])  # [(0.3, -1.2)]
    """

    pad_id: int | None
    new_head_seed: int | None

    @classmethod
    def load(
        cls,
        path: str,
        *,
        dtype: str = "auto",
        batch_size: int = 16,
        chunk_size: int = 1024,
        max_length: int | None = None,
        revision: str | None = None,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        new_head_seed: int | None = None,
        seed: int = 0,
    ) -> ScalarRM:
        """Load a classifier from a directory or the Hub.

        Args:
            path: Directory or Hub id.
            dtype: Type of the weights.
            batch_size: Responses at a time.
            chunk_size: As `RewardModel.chunk_size`.
            max_length: Tokens of prompt and response together; `None` for what the model declares.
            revision: Commit, tag or branch on the Hub.
            template_kwargs: Passed to the chat template.
            new_head_seed: Gives a model that has no head for scores a random one: a baseline, not a reward model.
            seed: As `ResponseScorer.seed`.

        Raises:
            ModelError: its head has other than one label; weights are missing; there is a head where a new one was
                asked for.
        """
        model = _load(path, dtype, revision, new_head_seed)
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
        return cls(
            path=path,
            model=model,
            chat=Chat(tokenizer, template_kwargs),
            pad_id=_pad_id(model),
            batch_size=batch_size,
            chunk_size=chunk_size,
            max_length=longest(path, model, tokenizer, max_length),
            new_head_seed=new_head_seed,
            seed=seed,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """As `RewardModel.identity`."""
        return {
            "kind": "classifier",
            "weights": weights_of(self.path, self.model),
            "dtype": str(self.model.dtype),
            "new_head_seed": self.new_head_seed,
            **template(self.chat),
        }

    def rows(self, requests: Sequence[Request]) -> list[Row]:
        tokenizer = self.chat.tokenizer
        turns = conversations(requests, self.chat.special_tokens)
        if tokenizer.chat_template:
            texts = [self.chat.text(messages, add_generation_prompt=False) for messages in turns]
            encoded = tokenizer(texts, add_special_tokens=False)
        else:
            encoded = tokenizer(*([messages[i]["content"] for messages in turns] for i in (0, 1)))
        names = encoded.keys() & inspect.signature(self.model.forward).parameters.keys()
        return [{name: encoded[name][i] for name in sorted(names)} for i in range(len(requests))]

    def _scores(self, rows: Sequence[Row]) -> torch.Tensor:
        pad_id = self.pad_id
        if pad_id is None:
            pad_id = unused_end(rows)
            self.model.config.get_text_config().pad_token_id = pad_id
        scores: torch.Tensor = self.model(**padded(rows, pad_id, self.model.device)).logits[:, 0].float()
        return scores


def _pad_id(model: Any) -> int | None:
    """The padding token that a model declares; one beyond its vocabulary (-1 is common) is in no text, so none."""
    config = model.config.get_text_config()
    declared = config.pad_token_id
    return declared if declared is not None and 0 <= declared < config.vocab_size else None


def _load(path: str, dtype: str, revision: str | None, new_head_seed: int | None) -> Any:
    """The classifier; with a random head where a seed for it is given."""
    config = AutoConfig.from_pretrained(path, revision=revision)
    if new_head_seed is not None:
        config.num_labels = 1
    elif config.num_labels != 1:
        raise ModelError(
            f"{path}: a head with {config.num_labels} labels ({', '.join(config.architectures or ['unnamed'])}), "
            "expected one, the score: give a reward model, or new_head_seed for a random head"
        )
    with nullcontext() if new_head_seed is None else torch.random.fork_rng():
        if new_head_seed is not None:
            torch.manual_seed(new_head_seed)
        model, missing = load_model(
            AutoModelForSequenceClassification, path, config=config, revision=revision, dtype=dtype
        )
    _expect_head(path, missing, model.base_model_prefix, new=new_head_seed is not None)
    return model


def _expect_head(path: str, missing: Sequence[str], body: str, *, new: bool) -> None:
    lost = [name for name in missing if not new or name.startswith(f"{body}.")]
    if lost:
        raise ModelError(
            f"{path} lacks weights of a classifier, which would be random: {', '.join(lost[:5])}"
            f"{', ...' if len(lost) > 5 else ''}. Give a reward model, or new_head_seed where only the head is missing "
            "and a random one is wanted"
        )
    if new and not missing:
        raise ModelError(f"{path} has a head for scores, and a new one was asked for: leave new_head_seed out")

"""Rollouts by transformers, from a model that may be a trainer's."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from huggingface_hub.utils.tqdm import enable_progress_bars
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, set_seed
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging as transformers_logging

from think_as_locals.engines.engine import Chat, Messages, Sampling, TokenEngine, by_prefix
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.runtime.output import LEVEL, is_verbose
from think_as_locals.types import ModelError, first_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransformersEngine(TokenEngine):
    """A language model that samples in batches of prompts of similar length, padded on the left."""

    model: Any
    chat: Chat
    batch_size: int

    @classmethod
    def load(
        cls, path: str, *, dtype: str, template_kwargs: Mapping[str, Any], batch_size: int, revision: str | None = None
    ) -> TransformersEngine:
        """Load a judge from a directory or the Hub; a ModelError without all its weights or a chat template."""
        chat = Chat.load(path, revision, template_kwargs)
        if dtype == "auto" and not torch.cuda.is_available():
            dtype = "float32"  # few CPUs compute in bfloat16 as fast
        model = load_language_model(path, dtype, revision)
        require_embeddings(path, model, chat.tokenizer)
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return cls(model, replace(chat, positions=positions), batch_size)

    def sort_key(self, messages: Messages) -> tuple[int, str]:
        """Return its length first, as batches are made of prompts of similar length."""
        text = self.chat.text(messages, add_generation_prompt=True)
        return len(self.chat.tokenizer(text, add_special_tokens=False)["input_ids"]), by_prefix(messages)

    def sample_tokens(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        def sample(indices: Sequence[int]) -> list[list[int]]:
            # By the room that each has: beyond it, absolute positions end.
            limit, positions = sampling.max_completion_length, self.chat.positions
            rooms = [limit if positions is None else min(limit, positions - len(prompts[i])) for i in indices]
            found = dict[int, list[int]]()
            for room in sorted(set(rooms)):
                own = [i for i, its_room in zip(indices, rooms, strict=True) if its_room == room]
                found.update(zip(own, self._sample([prompts[i] for i in own], room, sampling), strict=True))
            return [found[i] for i in indices]

        return self._batched(prompts, sample)

    def next_log_probs(
        self, contexts: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]
    ) -> list[list[float]]:

        def score(indices: Sequence[int]) -> list[list[float]]:
            ids, mask = (rows.to(self.model.device) for rows in padded([contexts[i] for i in indices], "left"))
            with torch.inference_mode():
                positions = (mask.cumsum(1) - 1).clamp(min=0)  # 0 for padding on the left
                output = self.model(
                    input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=1, use_cache=False
                )
                log_probs = output.logits[:, -1].float().log_softmax(-1)
            return [row[list(candidates[i])].tolist() for row, i in zip(log_probs, indices, strict=True)]

        return self._batched(contexts, score)

    def _batched(self, rows: Sequence[Sequence[int]], compute: Callable[[Sequence[int]], list[T]]) -> list[T]:
        """Return a result for each row of tokens, computed without dropout in batches of similar length."""
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = dict[int, T]()
        with evaluating(self.model):
            for start in range(0, len(by_length), self.batch_size):
                indices = by_length[start : start + self.batch_size]
                found.update(zip(indices, compute(indices), strict=True))
        return [found[i] for i in range(len(rows))]

    def _sample(self, prompts: list[list[int]], room: int, sampling: Sampling) -> list[list[int]]:
        ids, mask = (rows.to(self.model.device) for rows in padded(prompts, "left"))
        greedy = sampling.temperature == 0
        ends = sorted(self.chat.eos_token_ids)
        config = GenerationConfig(
            max_new_tokens=room,
            do_sample=not greedy,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,  # behind a completion's end, where it is cut
            use_cache=True,
            **({} if greedy else {"temperature": sampling.temperature, "top_k": 0}),
        )
        if not greedy:
            set_seed(sampling.seed)
        with torch.inference_mode(), neutral_generation(self.model):
            # Under ZeRO-3 the ranks have different numbers of batches.
            output = self.model.generate(ids, attention_mask=mask, generation_config=config, synced_gpus=False)
        completions: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return completions


@contextmanager
def neutral_generation(model: Any) -> Iterator[None]:
    """Have a model sample without dropout, by the settings it is given alone.

    `generate` completes them from the model's own configuration: Qwen2.5-Instruct's has a repetition penalty and a
    top_p, so that greedy would not be greedy, others suppress tokens; vLLM does none of it. Rows with the same prompt
    share its prefill.
    """
    settings = patch.dict(vars(model.generation_config), vars(GenerationConfig()), clear=True)
    with evaluating(model), settings, patch.object(model, "generate", partial(_generate, model, model.generate)):
        yield


def _generate(model: Any, generate: Callable[..., Tensor], input_ids: Tensor, **options: Any) -> Tensor:
    """Return what `generate` does; keys and values of equal rows, as of a group's prompt, are computed once."""
    bare = bare_model(model)
    cache = DynamicCache(config=bare.config)
    given = torch.stack([input_ids, options["attention_mask"]], -1)
    distinct, rows = torch.unique(given, dim=0, return_inverse=True)
    ids, mask = distinct[:, :-1].unbind(-1)  # the last token is computed row by row
    plain = all(type(layer) is DynamicLayer for layer in cache.layers)  # neither a window nor a state
    if plain and ids.numel() and len(distinct) < len(rows):
        known = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0), "logits_to_keep": 1}  # 0 for padding on the left
        more = {name: value for name, value in known.items() if name in signature(bare.forward).parameters}
        with torch.no_grad():
            bare(ids, attention_mask=mask, past_key_values=cache, use_cache=True, **more)
        if cache.get_seq_length() == ids.shape[1]:
            cache.batch_select_indices(rows)
            options["past_key_values"] = cache
    return generate(input_ids, **options)


def bare_model(model: Any) -> Any:
    """Return a model without what PEFT wraps around it; its layers may still have adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Have a model compute without dropout and other noise of training."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def padded(rows: Sequence[Sequence[int]], side: str) -> tuple[Tensor, Tensor]:
    """Return rows of token ids as a padded tensor (B, L) and its attention mask; `side` is `left` or `right`."""
    tensors = [torch.tensor(row).long() for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_side=side)
    return ids, pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True, padding_side=side)


def load_language_model(path: str, dtype: str, revision: str | None, device_map: str | None = None) -> Any:
    """Load a language model for inference; a ModelError if weights are missing, as in a classifier's files."""
    options: dict[str, Any] = {"dtype": dtype, "device_map": device_map, "output_loading_info": True}
    where = {"revision": revision, "trust_remote_code": False}
    with reading_model(path):
        model, info = AutoModelForCausalLM.from_pretrained(path, **where, **options)
    is_classifier = "is it a classifier (tal.ScalarRM, rms.NAME=classifier), or saved incompletely?"
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{path} lacks weights of a language model, which would be random: {first_of(missing, 5)}; {is_classifier}"
        )
    require_all_read(path, info, is_classifier)
    return on_device(model)


def require_all_read(path: str, info: Mapping[str, Any], remedy: str) -> None:
    """Raise a ModelError if a model's files have weights that it has no place for: it would compute something else."""
    if unexpected := sorted(info["unexpected_keys"]):
        raise ModelError(f"{path} has weights that would not be read: {first_of(unexpected, 5)}; {remedy}")


def require_embeddings(path: str, model: Any, tokenizer: Any) -> None:
    """Raise a ModelError if a tokenizer has tokens that a model has no embedding of, and that may be written.

    Neither padding nor special tokens of another use are, such as Gemma 3's of images.
    """
    rows, template = getattr(model.get_input_embeddings(), "num_embeddings", math.inf), str(tokenizer.chat_template)
    added = tokenizer.added_tokens_decoder.values()
    unwritten = {each.content for each in added if each.special and each.content not in template}
    ends = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.cls_token, tokenizer.sep_token}
    unwritten = unwritten - ends | {tokenizer.pad_token}
    if (last := max(id_ for token, id_ in tokenizer.get_vocab().items() if token not in unwritten)) >= rows:
        raise ModelError(
            f"{path}: its tokenizer has token {last}, the model {rows} embeddings: give the model's own tokenizer, or "
            "save the model with resized embeddings"
        )


def on_device(model: Any) -> Any:
    """Return a model in evaluation mode, on the GPU if there is one; a device map is left as it is."""
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # SDPA does not cap attention scores
    if not hasattr(model, "hf_device_map"):
        model.to("cuda" if torch.cuda.is_available() else "cpu")
    return model.eval()


def quiet_transformers() -> None:
    """Hide the logs of transformers and its progress bars for loading weights, but not those of downloads."""
    if is_verbose():
        return
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if os.environ.get(LEVEL) != "quiet":
        enable_progress_bars()

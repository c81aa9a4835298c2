"""Rollouts from transformers' `generate`, by a model that may be a trainer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, set_seed
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from think_as_locals.engines.engine import Chat, Sampling, TokenEngine
from think_as_locals.runtime.model_files import reading_model
from think_as_locals.types import ModelError

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
        model = load_language_model(path, dtype, revision)
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return cls(model, replace(chat, positions=positions), batch_size)

    def sample_tokens(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        return self._batched(prompts, lambda indices: self._sample([prompts[i] for i in indices], sampling))

    def next_log_probs(
        self, contexts: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]
    ) -> list[list[float]]:

        def score(indices: Sequence[int]) -> list[list[float]]:
            ids, mask = (rows.to(self.model.device) for rows in padded([contexts[i] for i in indices], "left"))
            with torch.inference_mode():
                output = self.model(
                    input_ids=ids, attention_mask=mask, position_ids=positions(mask), logits_to_keep=1, use_cache=False
                )
                log_probs = output.logits[:, -1].float().log_softmax(-1)
            return [row[list(candidates[i])].tolist() for row, i in zip(log_probs, indices, strict=True)]

        return self._batched(contexts, score)

    def _batched(self, rows: Sequence[Sequence[int]], compute: Callable[[Sequence[int]], list[T]]) -> list[T]:
        """Return a result for each row of tokens, computed without dropout in batches of similar length."""
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found, was_training = dict[int, T](), self.model.training
        self.model.eval()
        try:
            for start in range(0, len(by_length), self.batch_size):
                indices = by_length[start : start + self.batch_size]
                found.update(zip(indices, compute(indices), strict=True))
        finally:
            self.model.train(was_training)
        return [found[i] for i in range(len(rows))]

    def _sample(self, prompts: list[list[int]], sampling: Sampling) -> list[list[int]]:
        ids, mask = (rows.to(self.model.device) for rows in padded(prompts, "left"))
        greedy = sampling.temperature == 0
        limit, positions = sampling.max_completion_length, self.chat.positions
        rooms = [limit if positions is None else min(limit, positions - len(prompt)) for prompt in prompts]
        ends = sorted(self.chat.eos_token_ids)
        config = GenerationConfig(
            max_new_tokens=max(rooms),
            do_sample=not greedy,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,  # behind a completion's end, where it is cut
            use_cache=True,
            **({} if greedy else {"temperature": sampling.temperature, "top_k": 0}),
        )
        if not greedy:
            set_seed(sampling.seed)
        with torch.inference_mode(), _default_generation_config(self.model.generation_config):
            # Synced, under ZeRO-3, every rank would need as many batches as the others.
            output = generate(
                self.model, input_ids=ids, attention_mask=mask, generation_config=config, synced_gpus=False
            )
        completions: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return [completion[:room] for completion, room in zip(completions, rooms, strict=True)]


def padded(rows: Sequence[Sequence[int]], side: str) -> tuple[Tensor, Tensor]:
    """Return rows of token ids as a padded tensor (B, L) and its attention mask; `side` is `left` or `right`."""
    tensors = [torch.tensor(row).long() for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_side=side)
    return ids, pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True, padding_side=side)


def positions(mask: Tensor) -> Tensor:
    """Return the position of each token in its row (B, L), given the attention mask; 0 for padding on the left."""
    return (mask.cumsum(1) - 1).clamp(min=0)


class GrowingLayer(DynamicLayer):
    """Keys and values (B, heads, L, size) that grow in place, where a DynamicLayer copies all for every token."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._rooms: tuple[Tensor | None, Tensor | None] = (None, None)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new states into the room, and return views of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, written = self.get_seq_length(), list[Tensor]()
        end, known = start + key_states.shape[-2], (self.keys, self.values)
        for room, states, new in zip(self._rooms, known, (key_states, value_states), strict=True):
            # Other code may have replaced the states, as `batch_select_indices` does.
            if room is None or room.data_ptr() != states.data_ptr() or room.shape[-2] < end:
                room = new.new_empty(*new.shape[:-2], end + end // 4, new.shape[-1])
                if start:
                    room[..., :start, :] = states
            room[..., start:end, :] = new
            written.append(room)
        self._rooms = (written[0], written[1])
        self.keys, self.values = (room[..., :end, :] for room in written)
        return self.keys, self.values


def generate(
    model: Any, *, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **options: Any
) -> Tensor:
    """Return what `model.generate` returns, (B, L + C), but read a prompt that several rows share only once.

    Prompts are padded on the left, and `options` are the model's own arguments of `generate`. The same random numbers
    give the same tokens, but for the rounding of a batch of another size.
    """
    rows = {"input_ids": input_ids, "attention_mask": attention_mask, "generation_config": generation_config}
    prompts, row_prompts = torch.unique(torch.cat([input_ids, attention_mask], 1), dim=0, return_inverse=True)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    attends = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
    attends &= generation_config.cache_implementation is None and generation_config.use_cache is not False
    if attends and cache.layers:
        cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
        options["past_key_values"] = cache
    if len(prompts) < len(input_ids) and input_ids.shape[1] > 1 and "past_key_values" in options:
        ids, mask = (part[:, :-1] for part in prompts.chunk(2, 1))  # `generate` reads the last token itself
        with torch.no_grad():
            model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions(mask),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        cache.batch_select_indices(row_prompts)
    return model.generate(**rows, **options)  # type: ignore[no-any-return]


def load_language_model(path: str, dtype: str, revision: str | None, device_map: str | None = None) -> Any:
    """Load a language model for inference; a ModelError if weights are missing, as in a classifier's files."""
    options: dict[str, Any] = {"dtype": dtype, "device_map": device_map, "output_loading_info": True}
    with reading_model(path):
        model, info = AutoModelForCausalLM.from_pretrained(path, revision=revision, trust_remote_code=False, **options)
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{path} lacks weights of a language model, which would be random: {', '.join(missing[:5])}. Is it a "
            "classifier (tal.ScalarRM, rms.NAME=classifier), or saved incompletely?"
        )
    return on_device(model)


def on_device(model: Any) -> Any:
    """Return a model in evaluation mode, on the GPU if there is one; a device map is left as it is."""
    if not hasattr(model, "hf_device_map"):
        model.to("cuda" if torch.cuda.is_available() else "cpu")
    return model.eval()


@contextmanager
def _default_generation_config(config: GenerationConfig) -> Iterator[None]:
    """Replace a model's generation config, with which `generate` completes the one that it is given, by the defaults.

    Qwen2.5-Instruct's has a repetition penalty and a top_p: greedy would not be greedy, and differ from vLLM's.
    """
    saved = dict(vars(config))
    vars(config).clear()
    vars(config).update(vars(GenerationConfig()))
    try:
        yield
    finally:
        vars(config).clear()
        vars(config).update(saved)

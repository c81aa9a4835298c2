"""Sampling by transformers in which a shared prompt is read and kept once, and rows leave the batch as they end.

We call the model's own `generate` (its processors, criteria and inputs) with our loop, cache and attention. Rows that
share a prompt attend to one copy of its keys and values (arXiv 2402.05099) beside those of their own tokens.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from think_as_locals.engines import packing
from think_as_locals.types import ModelError


def positions(mask: Tensor) -> Tensor:
    """Return the position of each token in its row (B, L), given the attention mask; 0 for padding on the left."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def generate(
    model: Any, *, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **options: Any
) -> Tensor:
    """Return what `model.generate` returns, (B, L + C), but faster, given its own arguments and whole weights.

    Prompts are padded on the left. The same random numbers give the same tokens, but for the rounding of a batch of
    another size. Caches other than of keys and values, and searches, are left to transformers.
    """
    # Synced, under ZeRO-3, every rank would need as many batches as the others.
    options |= {"input_ids": input_ids, "attention_mask": attention_mask, "generation_config": generation_config}
    options["synced_gpus"] = False
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    supported = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
    supported &= generation_config.cache_implementation is None and generation_config.use_cache is not False
    supported &= all(_samples(config) for config in (generation_config, model.generation_config))
    if not supported or not cache.layers:
        return model.generate(**options)  # type: ignore[no-any-return]
    _let_grow(cache)
    prompts, row_prompts = torch.unique(torch.cat([input_ids, attention_mask], 1), dim=0, return_inverse=True)
    shared = None
    if len(prompts) < len(input_ids) and input_ids.shape[1] > 1:
        ids, mask = (part[:, :-1] for part in prompts.chunk(2, 1))  # `_decode` reads the last token itself
        with torch.no_grad():
            model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions(mask),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        if _can_share(base, cache):
            packing.prepare(base)
            shared = SharedPrompts(cache, mask, row_prompts)
            _let_grow(cache)
        else:
            cache.batch_select_indices(row_prompts)
    options |= {"past_key_values": cache, "custom_generate": _decode, "shared": shared}
    with _head_in_parts(model):
        return model.generate(**options)  # type: ignore[no-any-return]


def _samples(config: GenerationConfig) -> bool:
    """Return whether a config asks for sampling or greedy decoding, by processors that need no row's earlier scores."""
    stateful = ("guidance_scale", "watermarking_config", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size")
    is_stateless = all(getattr(config, name) in (None, 0, 1) for name in stateful)
    return is_stateless and config.get_generation_mode() in ("sample", "greedy_search")


def _let_grow(cache: DynamicCache) -> None:
    cache.layers = [layer if type(layer) is DynamicSlidingWindowLayer else GrowingLayer() for layer in cache.layers]


def _can_share(model: PreTrainedModel, cache: DynamicCache) -> bool:
    """Return whether rows may attend to one copy of a prompt's keys and values, given the cache of prompts."""
    # In half precision, also that of autocast, scores would be rounded before the softmax.
    full = not torch.is_autocast_enabled(cache.layers[0].keys.device.type) and all(
        type(layer) is GrowingLayer and min(layer.keys.dtype.itemsize, layer.values.dtype.itemsize) >= 4
        for layer in cache.layers
    )
    return full and model.is_backend_compatible() and packing.unsupported_reason(model) is None


def _head_in_parts(model: Any) -> AbstractContextManager[Any]:
    """Have a plain LM head on a CPU compute 1,024 tokens of the vocabulary at a time, which is faster.

    For a product with a few rows, MKL first copies the weights; a part's copy stays in the cache. Logits are the same
    but for rounding.
    """
    head = model.get_output_embeddings()
    plain = type(head) is nn.Linear and head.bias is None and "forward" not in vars(head)
    if not plain or head.weight.device.type != "cpu" or head.weight.dtype != torch.float32:
        return nullcontext()

    def forward(hidden: Tensor) -> Tensor:
        parts = head.weight.split(1024) if len(hidden) > 1 else [head.weight]
        return torch.cat([nn.functional.linear(hidden, part) for part in parts], -1)

    return patch.object(head, "forward", forward)


def _decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    shared: SharedPrompts | None = None,
    **inputs: Any,
) -> Tensor:
    """Sample as transformers' own loop does, with its processors and criteria, from the rows that have not ended."""
    count, length = input_ids.shape
    output = input_ids.new_full((count, generation_config.max_length), generation_config.pad_token_id or 0)
    output[:, :length] = input_ids
    rows = torch.arange(count, device=input_ids.device)  # of the output, that are still in the batch
    unread = 1 if shared else length - inputs["past_key_values"].get_seq_length()
    while len(rows):
        given = model.prepare_inputs_for_generation(input_ids, next_sequence_length=unread, **inputs)
        if shared:
            given |= {"attention_mask": packing.no_mask(input_ids), packing.PROMPTS: shared}
        with model._optimize_model_for_decode() if unread == 1 else nullcontext():
            outputs = model(**given, return_dict=True)
        inputs, unread = model._update_model_kwargs_for_generation(outputs, inputs), 1
        scores = logits_processor(input_ids, outputs.logits[:, -1].float())
        tokens = sample_tokens(scores.softmax(-1), rows, count) if generation_config.do_sample else scores.argmax(-1)
        output[rows, length] = tokens
        length += 1
        input_ids = output[rows, :length]
        ended = stopping_criteria(input_ids, None)
        if ended.any():
            stay = (~ended).nonzero()[:, 0]
            kept = torch.arange(len(stay), device=rows.device)
            kept[ended[: len(stay)]] = stay[stay >= len(stay)]  # the last rows take the places of those that ended
            rows, input_ids = rows[kept], input_ids[kept]
            inputs = {name: at[..., kept, :] if isinstance(at, Tensor) else at for name, at in inputs.items()}
            inputs["past_key_values"].batch_select_indices(kept)
            if shared:
                shared.select(kept)
    return output[:, :length]


def sample_tokens(probabilities: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return a token (B) for each of these rows of `count`, as `multinomial` samples them.

    Ended rows draw too: so the others get the random numbers that they get in transformers' loop.
    """
    shape = count, probabilities.shape[1]
    if probabilities.device.type != "cpu":
        return probabilities.new_ones(shape).index_copy(0, rows, probabilities).multinomial(1)[rows, 0]
    if probabilities[:, 0].isnan().any():  # a softmax of what is not finite is NaN in all places
        raise ModelError(
            "the model's scores of the next token are not finite: its weights are damaged, or too large for "
            "its dtype (float32 has the widest range)"
        )
    # What `multinomial` computes here, but for `exponential_`, which takes one logarithm at a time.
    uniform = probabilities.new_empty(shape, dtype=torch.float64).uniform_()[rows]
    return (probabilities / uniform.neg_().log1p_().neg_().float()).argmax(-1)


class GrowingLayer(DynamicLayer):
    """Keys and values (B, heads, L, size) that grow in place, where a DynamicLayer copies all for every token."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._rooms: tuple[Tensor | None, Tensor | None] = (None, None)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new states, and return views of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, written = self.get_seq_length(), list[Tensor]()
        end, known = start + key_states.shape[-2], (self.keys, self.values)
        for room, states, new in zip(self._rooms, known, (key_states, value_states), strict=True):
            # Other code may have replaced the states, as `batch_select_indices` does to repeat rows.
            if room is None or room.data_ptr() != states.data_ptr() or room.shape[-2] < end:
                room = new.new_empty(*new.shape[:-2], end + end // 4, new.shape[-1])
                if start:
                    room[..., :start, :] = states
            room[: len(new), ..., start:end, :] = new
            written.append(room)
        self._rooms = (written[0], written[1])
        self.keys, self.values = (room[: len(key_states), ..., :end, :] for room in written)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows, in place if there are no more than now: only those that move are copied."""
        count = len(indices)
        if self.get_seq_length() == 0 or count > len(self.keys):
            super().batch_select_indices(indices)
            return
        moved = (indices != torch.arange(count, device=indices.device)).nonzero()[:, 0]
        for states in (self.keys, self.values):
            states[moved] = states[indices[moved]]
        self.keys, self.values = self.keys[:count], self.values[:count]


class SharedPrompts:
    """Keys (N, H_kv, D, P) and values (N, H_kv, P, D) of N prompts, to which B rows attend beside their own tokens.

    A layer computes the scores of all rows of a prompt at once, in a block (N, H_kv, G R, ...): G rows for each prompt,
    of which some may be empty, and R query heads for each key head.
    """

    def __init__(self, cache: DynamicCache, mask: Tensor, row_prompts: Tensor) -> None:
        """Take the prompts' cache and attention mask (N, P), and the index of each row's prompt (B)."""
        self._layers = [(layer.keys.transpose(2, 3), layer.values) for layer in cache.layers]
        if mask.device.type == "cpu":  # where a product with keys that lie as it reads them is faster
            self._layers = [(keys.contiguous(), values) for keys, values in self._layers]
        self._hidden = None if mask.all() else (mask == 0)[:, None, None]
        self._row_prompts = row_prompts
        self.select(torch.arange(len(row_prompts), device=mask.device))

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch."""
        self._row_prompts = prompts = self._row_prompts[rows]
        counts = prompts.bincount(minlength=len(self._layers[0][0]))
        order = prompts.argsort(stable=True)
        ranks = torch.empty_like(order)  # of each row among those of its prompt
        ranks[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[prompts[order]]
        self._longest = int(counts.max()) if len(rows) else 0
        indices = prompts * self._longest + ranks
        in_order = torch.equal(indices, torch.arange(len(counts) * self._longest, device=order.device))
        self._block_indices = None if in_order else indices  # rows that lie as in the block are not copied there

    def attention(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Return a layer's attention (B, 1, H, D), given query (B, H, 1, D) and own key and value (B, H_kv, L, D)."""
        keys, values = self._layers[module.layer_idx]
        query = scaling * query.view(len(query), keys.shape[1], -1, query.shape[-1])  # (B, H_kv, R, D)
        scores = self._to_block(query) @ keys  # (N, H_kv, G R, P)
        if self._hidden is not None:
            scores = scores.masked_fill(self._hidden, -torch.inf)
        weights = torch.cat([scores, self._to_block(query @ key.transpose(2, 3))], -1).softmax(-1)
        length = keys.shape[3]
        output = self._to_rows(weights[..., :length] @ values) + self._to_rows(weights[..., length:]) @ value
        return output.flatten(1, 2)[:, None]

    def _to_block(self, rows: Tensor) -> Tensor:
        """Return (N, H_kv, G R, X) of rows (B, H_kv, R, X)."""
        count = len(self._layers[0][0])
        if self._block_indices is not None:
            block = rows.new_zeros(count * self._longest, *rows.shape[1:])
            rows = block.index_copy(0, self._block_indices, rows)
        return rows.view(count, self._longest, *rows.shape[1:]).transpose(1, 2).flatten(2, 3)

    def _to_rows(self, block: Tensor) -> Tensor:
        """Return (B, H_kv, R, X) of a block."""
        rows = block.reshape(*block.shape[:2], self._longest, -1, block.shape[-1])
        rows = rows.transpose(1, 2).flatten(0, 1)
        return rows if self._block_indices is None else rows[self._block_indices]

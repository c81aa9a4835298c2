"""Other ways to pack a batch, in TRL's GRPOTrainer, for `update.py`: rows without padding, and TRL's prefix trie.

The layout is that of TRL's AsyncGRPOTrainer. The kernel it wants (FlashAttention 3) has no CPU build: here every
segment attends to its path by torch's scaled dot product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from trl import GRPOTrainer
from trl.experimental.async_grpo.packing import TreeRow
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

SEGMENTS = "segments"  # the attention of both, for `attn_implementation`


class UnpaddedTrainer(GRPOTrainer):
    """A pass is one row of all samples, without padding; each has its own prompt."""

    shares = False

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **others: Any
    ) -> tuple[Tensor, Tensor, None]:
        kept = attention_mask.bool()
        packed = {name: tensor.to(input_ids.device) for name, tensor in self._pack(input_ids, kept, logits_to_keep)}
        logits = model(
            input_ids=packed["input_ids"][None],
            position_ids=packed["position_ids"][None],
            logits_to_keep=packed["token_index"],
            use_cache=False,
            **{name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")},
        ).logits[0]
        completions = kept[:, -logits_to_keep:]
        log_probs = selective_log_softmax(logits / self.temperature, input_ids[:, -logits_to_keep:][completions])
        entropies = entropy_from_logits(logits.detach())
        empty = logits.new_zeros(completions.shape)
        return empty.masked_scatter(completions, log_probs), empty.masked_scatter(completions, entropies), None

    def _pack(self, input_ids: Tensor, kept: Tensor, longest: int) -> Any:
        row, chains = TreeRow(), dict[Any, int]()
        for number, (ids, mask) in enumerate(zip(input_ids, kept, strict=True)):
            trained = (torch.arange(len(mask)) >= len(mask) - longest)[mask.cpu()]
            row.add(
                {
                    "input_ids": ids[mask],
                    "completion_mask": trained,
                    "old_log_probs": torch.zeros(len(trained)),
                    "advantage": 0.0,
                    "group_id": number,
                }
            )
            if not self.shares:  # the next sample finds no prefix
                chains |= {(number, key): node for key, node in row.roots.items()}
                row.roots = {}
        row.roots |= chains
        return row.pack().items()


class TrieTrainer(UnpaddedTrainer):
    """A pass is one row of all samples, in which a common prefix stands once."""

    shares = True


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    outputs = []
    bounds = zip(*(ends.unfold(0, 2, 1).tolist() for ends in (tree_cu_seqlens_q, tree_cu_seqlens_k)), strict=True)
    for (start, end), (first, last) in bounds:
        path = tree_kv_index[first:last]
        distance = torch.arange(last - first - (end - start), last - first)[:, None] - torch.arange(last - first)
        seen = distance >= 0
        if sliding_window:
            seen &= distance < sliding_window
        outputs.append(
            scaled_dot_product_attention(
                query[:, :, start:end],
                key[:, :, path],
                value[:, :, path],
                attn_mask=seen.to(query.device),
                scale=scaling,
                enable_gqa=True,
            )
        )
    return torch.cat(outputs, 2).transpose(1, 2), None


AttentionInterface.register(SEGMENTS, _attention)
AttentionMaskInterface.register(SEGMENTS, lambda **_: None)

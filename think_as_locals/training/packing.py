"""Rows that share a prompt as one row that holds the prompt once, and the attention that such a row needs.

Rollouts of a group, prompt `p q r` and completions `a b` and `c d e`, become

    tokens     p q | r a | r c d
    positions  0 1 | 2 3 | 2 3 4
    labels     . . | a b | c d e

Every branch begins with the prompt's last token, which predicts the first token of its completion, and sees the trunk
(the prompt without that token) and itself only. So the log-probabilities and gradients are those of separate rows, to
rounding, while the token count falls from G(P+C) to P+GC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

SUPPORTED_KERNELS = ("sdpa", "flash_attention_2", "flash_attention_3")
ARGUMENT = "shared_prefix"
"""Name of the model's keyword argument that says how a row is packed; it reaches the attention of every layer."""


@dataclass(frozen=True, slots=True)
class Group:
    """Where a group lies in a packed row."""

    trunk: slice
    branches: slice  # one after the other
    num_branches: int
    longest: int  # tokens of the longest branch
    scatter: Tensor | None  # index of each branch token in the padded block (num_branches x longest), if any is padded


@dataclass(frozen=True, slots=True)
class Packed:
    """One row of L tokens for a model."""

    tokens: Tensor  # (1, L)
    positions: Tensor  # of each token in its own sequence, (1, L)
    labels: Tensor  # what the branch tokens predict, (1, L')
    scored: Tensor  # index of the L' branch tokens in the row
    groups: tuple[Group, ...]
    rows: Tensor  # which row each label is of ...
    columns: Tensor  # ... and which of its completion tokens it is


def pack(prompts: Sequence[Tensor], completions: Sequence[Tensor]) -> Packed:
    """Pack sequences; neighbours with equal prompts share a trunk."""
    wanted = [row for row, completion in enumerate(completions) if len(completion)]
    if not wanted or any(not len(prompts[row]) for row in wanted):
        raise ValueError("nothing to pack: expected at least one completion, and a prompt before each")
    tokens: list[Tensor] = []
    positions: list[Tensor] = []
    groups: list[Group] = []
    device = prompts[wanted[0]].device
    for _, neighbours in groupby(wanted, key=lambda row: prompts[row].tolist()):
        members = list(neighbours)
        prompt, lengths = prompts[members[0]], [len(completions[row]) for row in members]
        trunk, start, longest = len(prompt) - 1, groups[-1].branches.stop if groups else 0, max(lengths)
        tokens += [prompt[:-1], *(part for row in members for part in (prompt[-1:], completions[row][:-1]))]
        positions += [torch.arange(trunk), *(torch.arange(trunk, trunk + length) for length in lengths)]
        places = [torch.arange(i * longest, i * longest + length) for i, length in enumerate(lengths)]
        groups.append(
            Group(
                trunk=slice(start, start + trunk),
                branches=slice(start + trunk, start + trunk + sum(lengths)),
                num_branches=len(lengths),
                longest=longest,
                scatter=None if min(lengths) == longest else torch.cat(places).to(device),
            )
        )
    return Packed(
        tokens=torch.cat(tokens)[None],
        positions=torch.cat(positions).to(device)[None],
        labels=torch.cat([completions[row] for row in wanted])[None],
        scored=torch.cat([torch.arange(group.branches.start, group.branches.stop) for group in groups]).to(device),
        groups=tuple(groups),
        rows=torch.cat([torch.full((len(completions[row]),), row) for row in wanted]).to(device),
        columns=torch.cat([torch.arange(len(completions[row])) for row in wanted]).to(device),
    )


def log_probs(model: nn.Module, packed: Packed) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities of the labels, and entropies where the model's head computes them, (L',) each."""
    outputs = model(
        input_ids=packed.tokens,
        position_ids=packed.positions,
        # Four dimensions tell transformers that the mask is made already; the attention of a packed row needs none.
        attention_mask=packed.tokens.new_ones(1, 1, 1, 1),
        shift_labels=packed.labels,
        fused_lm_head=True,
        **{ARGUMENT: packed},
    )
    return outputs.log_probs[0], None if outputs.entropy is None else outputs.entropy[0]


def prepare(model: PreTrainedModel) -> None:
    """Let a model take packed rows; ordinary rows are computed as before."""
    name = model.config._attn_implementation
    kernel = ALL_ATTENTION_FUNCTIONS[name]
    if not isinstance(kernel, PackedAttention):
        AttentionInterface.register(name, PackedAttention(name, kernel))
    if _keep_scored not in model.base_model._forward_hooks.values():
        model.base_model.register_forward_hook(_keep_scored, with_kwargs=True)


def _keep_scored(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Pass only the scored positions on to the LM head."""
    if (packed := kwargs.get(ARGUMENT)) is not None:
        output.last_hidden_state = output.last_hidden_state[:, packed.scored]
    return output


class PackedAttention:
    """An attention kernel of transformers that also computes packed rows."""

    def __init__(self, name: str, kernel: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
        self._name = name
        self._kernel = kernel

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of a layer: query (1, H, L, D), key and value (1, H_kv, L, D) -> (1, L, H, D)."""
        packed: Packed | None = kwargs.pop(ARGUMENT, None)
        if packed is None:
            return self._kernel(module, query, key, value, attention_mask, **kwargs)
        # Positions are in the tensors already; flash attention would read from them where sequences begin.
        kwargs.pop("position_ids", None)
        if torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        outputs = []
        for group in packed.groups:
            if group.trunk.start != group.trunk.stop:
                trunk = (tensor[:, :, group.trunk] for tensor in (query, key, value))
                outputs.append(self._kernel(module, *trunk, None, **kwargs)[0])
            outputs.append(self._branches(module, query, key, value, group, kwargs))
        return torch.cat(outputs, dim=1), None

    def _branches(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, group: Group, kwargs: dict[str, Any]
    ) -> Tensor:
        """Every branch sees the trunk and what comes before in itself: causal attention aligned to the end."""
        q, k, v = (_unpack(tensor[0, :, group.branches], group) for tensor in (query, key, value))
        k, v = (
            torch.cat([whole[:, :, group.trunk].expand(group.num_branches, -1, -1, -1), own], dim=2)
            for whole, own in ((key, k), (value, v))
        )
        if self._name == "sdpa":
            grouped = q.shape[1] != k.shape[1]
            if grouped and not _grouped_heads_are_fast(q):
                k, v = (repeat_kv(tensor, q.shape[1] // k.shape[1]) for tensor in (k, v))
                grouped = False
            # The kernel's own flag would align to the beginning.
            mask = causal_lower_right(q.shape[2], k.shape[2])
            output = nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=kwargs.get("scaling"), enable_gqa=grouped
            ).transpose(1, 2)
        else:
            output = self._kernel(module, q, k, v, None, **kwargs)[0]
        flat = output.reshape(1, group.num_branches * group.longest, *output.shape[2:])
        return flat if group.scatter is None else flat[:, group.scatter]


def _grouped_heads_are_fast(query: Tensor) -> bool:
    """Whether SDPA takes fewer key heads than query heads without a kernel that writes all scores to memory."""
    return query.device.type == "cpu" or (query.dtype != torch.float32 and query.shape[-1] <= 256)


def _unpack(tokens: Tensor, group: Group) -> Tensor:
    """(H, branch tokens, D) -> (branches, H, longest, D), padded at the end, where nothing else looks."""
    heads, _, width = tokens.shape
    if group.scatter is not None:
        block = tokens.new_zeros(heads, group.num_branches * group.longest, width)
        tokens = block.index_copy(1, group.scatter, tokens)
    return tokens.view(heads, group.num_branches, group.longest, width).transpose(0, 1)

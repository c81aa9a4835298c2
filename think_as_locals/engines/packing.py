"""Packing rows with the same prompt into one row that has the prompt once.

Rollouts of a group, prompt `p q r` and completions `a b` and `c d e`, become

    tokens     p q | r a | r c d
    positions  0 1 | 2 3 | 2 3 4
    labels     . . | a b | c d e

Every branch begins with the prompt's last token, which predicts the first token of its completion, and attends only to
the trunk (the prompt without that token) and itself. So log-probabilities and gradients are those of separate rows, up
to rounding, while the number of tokens falls from G(P+C) to P+GC. For a classifier, `pack_rows` makes a trunk of the
rows' common prefix, and only the last token of each branch is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

import torch
from torch import Tensor

ARGUMENT = "shared_prefix"
"""The keyword argument of the model with the packed row; it is passed on to the attention of every layer."""


@dataclass(frozen=True, slots=True)
class Group:
    """The place of a group in a packed row."""

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
    scored: Tensor  # indices of the L' tokens whose outputs are used
    groups: tuple[Group, ...]

    @property
    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of a model."""
        # By its four dimensions it tells transformers not to make a mask: our layers need none.
        mask = self.tokens.new_ones(1, 1, 1, 1)
        rows = {"input_ids": self.tokens, "position_ids": self.positions, "attention_mask": mask, "use_cache": False}
        return {**rows, ARGUMENT: self}


@dataclass(frozen=True, slots=True)
class PackedCompletions(Packed):
    """One row whose branch tokens predict the tokens of completions."""

    labels: Tensor  # the predicted tokens, (1, L')
    rows: Tensor  # the row of each label ...
    columns: Tensor  # ... and its index in the completion


def pack(prompts: Sequence[Tensor], completions: Sequence[Tensor]) -> PackedCompletions:
    """Pack completions; consecutive ones with equal prompts share a trunk."""
    wanted = [row for row, completion in enumerate(completions) if len(completion)]
    if not wanted or any(not len(prompts[row]) for row in wanted):
        raise ValueError("nothing to pack: expected at least one completion, and a prompt before each")
    parts = []
    for _, neighbours in groupby(wanted, key=lambda row: prompts[row].tolist()):
        members = list(neighbours)
        prompt = prompts[members[0]]
        parts.append((prompt[:-1], [torch.cat([prompt[-1:], completions[row][:-1]]) for row in members]))
    tokens, positions, groups = _lay_out(parts)
    device = tokens.device
    return PackedCompletions(
        tokens=tokens,
        positions=positions,
        scored=torch.cat([torch.arange(group.branches.start, group.branches.stop) for group in groups]).to(device),
        groups=groups,
        labels=torch.cat([completions[row] for row in wanted])[None],
        rows=torch.cat([torch.full((len(completions[row]),), row) for row in wanted]).to(device),
        columns=torch.cat([torch.arange(len(completions[row])) for row in wanted]).to(device),
    )


def pack_rows(groups: Sequence[Sequence[list[int]]], device: torch.device) -> Packed:
    """Pack rows, with the common prefix of each group as its trunk; the last token of each row is scored."""
    parts = []
    for rows in groups:
        common = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*(row[:-1] for row in rows), strict=False))
        shared = len(list(common))
        branches = [torch.tensor(row[shared:], device=device) for row in rows]
        parts.append((torch.tensor(rows[0][:shared], dtype=torch.long, device=device), branches))
    tokens, positions, packed_groups = _lay_out(parts)
    ends = [
        group.branches.start + sum(map(len, branches[: i + 1])) - 1
        for group, (_, branches) in zip(packed_groups, parts, strict=True)
        for i in range(len(branches))
    ]
    return Packed(tokens=tokens, positions=positions, scored=torch.tensor(ends, device=device), groups=packed_groups)


def _lay_out(parts: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> tuple[Tensor, Tensor, tuple[Group, ...]]:
    """Return tokens (1, L), positions (1, L) and places of groups, each a trunk and its branches."""
    tokens: list[Tensor] = []
    positions: list[Tensor] = []
    groups: list[Group] = []
    device = parts[0][0].device
    for prefix, branches in parts:
        trunk, lengths = len(prefix), [len(branch) for branch in branches]
        start, longest = groups[-1].branches.stop if groups else 0, max(lengths)
        tokens += [prefix, *branches]
        positions += [torch.arange(trunk), *(torch.arange(trunk, trunk + length) for length in lengths)]
        indices = [torch.arange(i * longest, i * longest + length) for i, length in enumerate(lengths)]
        groups.append(
            Group(
                trunk=slice(start, start + trunk),
                branches=slice(start + trunk, start + trunk + sum(lengths)),
                num_branches=len(lengths),
                longest=longest,
                scatter=None if min(lengths) == longest else torch.cat(indices).to(device),
            )
        )
    return torch.cat(tokens)[None], torch.cat(positions).to(device)[None], tuple(groups)

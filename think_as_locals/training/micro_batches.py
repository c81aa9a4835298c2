"""Parts of a generation batch: micro-batches of whole groups, and passes of at most so many tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def micro_batches(batch: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Split a generation batch into equal parts: groups in random order but whole, each part without common padding.

    `batch` is what TRL's `_generate_and_score_completions` returns: B rows, prompts padded left, completions right.
    """
    ids = batch["prompt_ids"]
    group = _groups(ids)
    order = torch.randperm(int(group[-1]) + 1)[group].argsort(stable=True).to(ids.device)
    prompts, completions = ids.shape[1], batch["completion_ids"].shape[1]
    parts = []
    for rows in order.chunk(count):
        part = rows_of(batch, rows)
        left = prompts - int(part["prompt_mask"].sum(1).max())
        right = max(1, int(part["completion_mask"].sum(1).max()))
        for key, value in part.items():
            if key.startswith("prompt_"):
                part[key] = value[:, left:]
            elif torch.is_tensor(value) and value.dim() == 2 and value.shape[1] == completions:
                part[key] = value[:, :right]
        parts.append(part)
    return parts


def passes(
    prompt_ids: Tensor, prompt_mask: Tensor, completion_mask: Tensor, max_tokens: int, agree: Callable[[int], int] = int
) -> list[slice]:
    """Split a micro-batch into parts of at most `max_tokens` tokens, a group's prompt counted once; return their rows.

    Groups stay whole unless one alone is larger: then each of its parts has the prompt. `agree` returns how many parts
    all ranks are to have, given how many this one needs; there are never more than rows.

    Example:
        passes(ids, of_prompts, of_completions, 4096)  # [slice(0, 16), slice(16, 32)]: two groups of 8 in each pass
    """
    prompts, completions = (mask.sum(1).tolist() for mask in (prompt_mask, completion_mask))
    group = _groups(prompt_ids)
    sizes = torch.zeros(int(group[-1]) + 1, dtype=torch.long).index_add(0, group, torch.tensor(completions)).tolist()
    starts, used = [0], 0
    for row, (number, prompt, completion) in enumerate(zip(group.tolist(), prompts, completions, strict=True)):
        begins = row == 0 or number != group[row - 1]
        whole = prompt + sizes[number]
        more = whole if begins and whole <= max_tokens else completion + prompt * begins
        if used and used + more > max_tokens:
            starts.append(row)
            used = 0 if begins else prompt
        used += completion + prompt * begins
    ends = [*starts[1:], len(prompts)]
    parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    for _ in range(agree(len(parts)) - len(parts)):
        at = max(range(len(parts)), key=lambda number: parts[number].stop - parts[number].start)
        start, end = parts[at].start, parts[at].stop
        parts[at : at + 1] = [slice(start, (start + end) // 2), slice((start + end) // 2, end)]
    return parts


def rows_of(batch: dict[str, Any], rows: Tensor | slice) -> dict[str, Any]:
    """Return some rows of a batch; what is not by row stays."""
    return {key: value[rows] if torch.is_tensor(value) and value.dim() else value for key, value in batch.items()}


def _groups(prompt_ids: Tensor) -> Tensor:
    """Return the number of each row's run of equal prompts (B,), on the CPU."""
    starts = torch.cat([prompt_ids.new_ones(1, dtype=torch.bool), (prompt_ids[1:] != prompt_ids[:-1]).any(1)])
    return starts.cumsum(0).cpu() - 1

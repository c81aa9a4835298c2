"""A generation batch -> micro-batches of whole groups, each as short as its own rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def micro_batches(batch: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """A generation batch in equal parts, groups in random order but together, each part without common padding.

    Args:
        batch: What TRL's `_generate_and_score_completions` returns: B rows, prompts padded left, completions right.
        count: Number of parts; divides B.
    """
    prompts, completions = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]
    order = _shuffled_groups(batch["prompt_ids"])
    parts = []
    for rows in order.chunk(count):
        part = {key: value[rows] if torch.is_tensor(value) and value.dim() else value for key, value in batch.items()}
        left = prompts - int(part["prompt_mask"].sum(1).max())
        right = max(1, int(part["completion_mask"].sum(1).max()))
        for key, value in part.items():
            if key.startswith("prompt_"):
                part[key] = value[:, left:]
            elif torch.is_tensor(value) and value.dim() == 2 and value.shape[1] == completions:
                part[key] = value[:, :right]
        parts.append(part)
    return parts


def _shuffled_groups(prompt_ids: Tensor) -> Tensor:
    """Rows in an order that keeps neighbours with equal prompts together."""
    starts = torch.cat([prompt_ids.new_ones(1, dtype=torch.bool), (prompt_ids[1:] != prompt_ids[:-1]).any(1)])
    group = starts.cumsum(0).cpu() - 1
    place = torch.randperm(int(group[-1]) + 1)[group]
    return place.argsort(stable=True).to(prompt_ids.device)

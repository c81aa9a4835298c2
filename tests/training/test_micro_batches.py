"""Micro-batches: whole groups, without the padding of the others."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from think_as_locals.training.micro_batches import micro_batches

LENGTHS = [5, 3, 6, 1, 2, 6, 4, 4]


def batch() -> dict[str, torch.Tensor]:
    """Two groups of four rollouts, of prompts of 9 and 4 tokens; every value says its row."""
    rows = torch.arange(1, 9)[:, None]
    prompt_mask = torch.stack([(torch.arange(9) >= 9 - n).long() for n in (9, 4) for _ in range(4)])
    completion_mask = (torch.arange(6) < torch.tensor(LENGTHS)[:, None]).long()
    return {
        "prompt_ids": prompt_mask * torch.tensor([7] * 4 + [8] * 4)[:, None],
        "prompt_mask": prompt_mask,
        "completion_ids": completion_mask * rows,
        "completion_mask": completion_mask,
        "old_per_token_logps": -1.0 * completion_mask * rows,
        "importance_sampling_ratio": rows.float(),
        "advantages": rows[:, 0].float(),
        "num_items_in_batch": torch.tensor(31),
    }


def test_groups_stay_together_and_lose_common_padding() -> None:
    whole = batch()
    parts = sorted(micro_batches(whole, 2), key=lambda part: -part["prompt_ids"].shape[1])
    assert [tuple(part["prompt_ids"].shape) for part in parts] == [(4, 9), (4, 4)]
    assert torch.equal(parts[0]["completion_ids"], whole["completion_ids"][:4])
    assert torch.equal(parts[1]["old_per_token_logps"], whole["old_per_token_logps"][4:])
    assert parts[1]["advantages"].tolist() == [5, 6, 7, 8]
    assert parts[0]["importance_sampling_ratio"].shape == (4, 1)
    short = micro_batches(whole | {"completion_mask": whole["completion_mask"] * (torch.arange(6) < 2)}, 1)[0]
    assert short["completion_ids"].shape == short["completion_mask"].shape == (8, 2)


def test_a_batch_whose_completions_are_all_masked_keeps_a_column() -> None:
    whole = batch()
    part = micro_batches(whole | {"completion_mask": torch.zeros_like(whole["completion_mask"])}, 1)[0]
    assert part["completion_ids"].shape == (8, 1)


@given(count=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 99))
def test_no_row_is_lost_or_changed(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    whole = batch()
    parts = micro_batches(whole, count)
    seen = [row for part in parts for row in part["advantages"].int().tolist()]
    assert sorted(seen) == list(range(1, 9))
    assert seen in ([*range(1, 9)], [*range(5, 9), *range(1, 5)])
    for part in parts:
        assert part["num_items_in_batch"] == 31
        for row, ids, mask in zip(part["advantages"], part["completion_ids"], part["completion_mask"], strict=True):
            assert ids[mask.bool()].tolist() == [row] * LENGTHS[int(row) - 1]

"""Micro-batches keep groups together and drop padding; passes are whole groups within a number of tokens."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from training.test_shared_prefix import LENGTHS, batch

from think_as_locals.training.shared_prefix import micro_batches, passes


def numbered_batch() -> dict[str, Tensor]:
    """The batch, of prompts of 9 and 4 tokens, with values that are the number of their row."""
    rows, whole = torch.arange(1, 9)[:, None], batch()
    values = whole["completion_mask"] * rows
    ratio = {"importance_sampling_ratio": rows.float(), "advantages": rows[:, 0].float()}
    return whole | {"completion_ids": values, "old_per_token_logps": -1.0 * values, **ratio}


def test_micro_batches_keep_groups_and_drop_common_padding() -> None:
    whole = numbered_batch()
    parts = sorted(micro_batches(whole, 2), key=lambda part: -part["prompt_ids"].shape[1])
    assert [tuple(part["prompt_ids"].shape) for part in parts] == [(4, 9), (4, 4)]
    assert torch.equal(parts[0]["completion_ids"], whole["completion_ids"][:4])
    assert torch.equal(parts[1]["old_per_token_logps"], whole["old_per_token_logps"][4:])
    assert parts[1]["advantages"].tolist() == [5, 6, 7, 8]
    assert parts[0]["importance_sampling_ratio"].shape == (4, 1)
    for unmasked, columns in ((2, 2), (0, 2)):  # a single one TRL takes for values of whole completions
        short = {"completion_mask": whole["completion_mask"] * (torch.arange(6) < unmasked)}
        part = micro_batches(whole | short, 1)[0]
        assert part["completion_ids"].shape == part["completion_mask"].shape == (8, columns)


@given(count=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 99))
def test_micro_batches_preserve_every_row(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    whole = numbered_batch()
    parts = micro_batches(whole, count)
    seen = [row for part in parts for row in part["advantages"].int().tolist()]
    assert sorted(seen) == list(range(1, 9))
    assert seen in ([*range(1, 9)], [*range(5, 9), *range(1, 5)])
    for part in parts:
        assert part["num_items_in_batch"] == 31
        for row, ids, mask in zip(part["advantages"], part["completion_ids"], part["completion_mask"], strict=True):
            assert ids[mask.bool()].tolist() == [row] * LENGTHS[int(row) - 1]


@given(
    prompts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    max_tokens=st.integers(1, 40),
    agreed=st.integers(1, 20),
)
def test_passes_keep_groups_whole_and_within_the_tokens(
    prompts: list[int], lengths: list[int], max_tokens: int, agreed: int
) -> None:
    rows = [(prompt, length, number) for number, prompt in enumerate(prompts) for length in lengths]
    whole = {
        "prompt_ids": torch.tensor([[number] * 9 for *_, number in rows]),
        "prompt_mask": torch.stack([torch.arange(9) < prompt for prompt, *_ in rows]),
        "completion_mask": torch.stack([torch.arange(9) < length for _, length, _ in rows]),
    }
    parts = [list(range(len(rows))[part]) for part in passes(*whole.values(), max_tokens)]
    assert [row for part in parts for row in part] == list(range(len(rows)))
    for part in parts:
        groups = {rows[row][2] for row in part}
        tokens = sum(rows[row][1] for row in part) + sum(prompts[number] for number in groups)
        assert tokens <= max_tokens or len(part) == 1
        for number in groups:  # a group that fits is in one pass
            if prompts[number] + sum(lengths) <= max_tokens:
                assert {row for row in part if rows[row][2] == number} == set(range(4 * number, 4 * number + 4))
    wanted = max(len(parts), agreed)
    more = [list(range(len(rows))[part]) for part in passes(*whole.values(), max_tokens, lambda _: wanted)]
    assert len(more) == wanted
    assert [row for part in more for row in part] == list(range(len(rows)))

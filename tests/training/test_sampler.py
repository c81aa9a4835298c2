"""Both orders of an item in one group, in TRL's own order, whatever the number of processes."""

from __future__ import annotations

from collections import Counter

import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler
from trl.trainer.utils import RepeatSampler

from think_as_locals.training.sampler import BothOrdersSampler


def test_the_first_half_of_a_group_sees_one_order_and_the_second_the_other() -> None:
    rows = list(BothOrdersSampler(6, num_generations=4, batch_size=2, repeat_count=2, shuffle=False))
    assert rows == [0, 0, 1, 1, 2, 2, 3, 3] * 2  # two items a window, twice; the third item has no window


@settings(deadline=None)
@given(st.integers(1, 12), st.sampled_from([2, 4, 6]), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_items_come_in_the_order_of_trls_sampler(items: int, group: int, window: int, repeat: int, seed: int) -> None:
    same = {"batch_size": window, "repeat_count": repeat, "seed": seed}
    ours = BothOrdersSampler(2 * items, num_generations=group, **same)
    theirs = RepeatSampler(range(items), mini_repeat_count=group, **same)
    assert len(ours) == len(theirs)
    for _ in range(2):  # epochs
        rows, expected = list(ours), list(theirs)
        assert [row // 2 for row in rows] == expected
        assert len(rows) == len(ours)
        for start in range(0, len(rows), group):
            assert Counter(row % 2 for row in rows[start : start + group]) == {0: group // 2, 1: group // 2}


def test_the_seed_decides() -> None:
    first, again, other = (list(BothOrdersSampler(40, 4, batch_size=5, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("processes", [2, 4])
def test_over_several_processes_the_gathered_order_is_that_of_the_sampler(processes: int) -> None:
    group, per_process, steps = 8, 4, 2  # a group lies on two processes
    local = per_process * steps
    sampler = BothOrdersSampler(64, group, batch_size=local * processes // group, repeat_count=steps, seed=3)
    shards = [
        list(
            BatchSamplerShard(
                BatchSampler(sampler_of(64, group, local, processes, steps), local, False), processes, rank
            )
        )
        for rank in range(processes)
    ]
    gathered = [row for turn in zip(*shards, strict=True) for part in turn for row in part]
    assert gathered == list(sampler)


def sampler_of(rows: int, group: int, local: int, processes: int, steps: int) -> BothOrdersSampler:
    return BothOrdersSampler(rows, group, batch_size=local * processes // group, repeat_count=steps, seed=3)

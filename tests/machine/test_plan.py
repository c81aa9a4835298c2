"""The simulator of multi-node plans: it reproduces measured steps and closed-form cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks import plan
from benchmarks.plan import Batch, Costs, simulate

COSTS = Costs(decode=0.01, decode_row=0.001, update_token=0.002, sync=0.5, evaluation=30.0)
BATCH = Batch(rows=10, longest=100)  # sampled in 100 passes of 0.02 s, learned from in 2 s


def test_measured_steps_are_reproduced_within_15_percent() -> None:
    found = plan.check()
    assert len(found) == 3
    for name, measured, played in found:
        assert played == pytest.approx(measured, rel=0.15), name


def test_sampling_ahead_overlaps_sampling_and_update() -> None:
    assert simulate(COSTS, BATCH, 0).step == pytest.approx(2 + 2 + 0.5)
    assert simulate(COSTS, BATCH, 1, steps=4000).step == pytest.approx(2 + 0.5, rel=1e-3)
    long_update = simulate(replace(COSTS, update_token=0.006), BATCH, 1, steps=4000)
    assert long_update.step == pytest.approx(6 + 0.5, rel=1e-3)
    assert long_update.trainer_idle == pytest.approx(0.5 / 6.5, rel=1e-2)  # while weights are sent
    assert long_update.sampler_idle == pytest.approx(4.5 / 6.5, rel=1e-2)


def test_weight_sync_happens_once_per_window_of_batches() -> None:
    steps = [simulate(replace(COSTS, decode=0.0, decode_row=0.0), BATCH, ahead, steps=4000).step for ahead in (1, 4)]
    assert steps == pytest.approx([2 + 0.5, 2 + 0.5 / 4], rel=1e-3)


def test_sampling_time_accounts_for_slots_and_the_slowest_engine() -> None:
    assert plan.sampling_seconds(COSTS, replace(BATCH, slots=5), [100] * 10) == pytest.approx(2 * 100 * 0.015)
    assert plan.sampling_seconds(COSTS, replace(BATCH, engines=2), [100, 50] * 5) == pytest.approx(100 * 0.015)
    # The longest begins at once; each of the others takes the place of one that ended.
    assert plan.sampling_seconds(COSTS, replace(BATCH, slots=2), [10, 10, 20]) == pytest.approx(20 * 0.012)


def test_more_nodes_need_the_same_tokens_and_less_memory() -> None:
    small, large = (plan._divided(plan.MODELS[0], n, 2, 16) for n in (6, 60))
    assert small is not None
    assert large is not None
    assert small.needed == large.needed
    assert small.memory > large.memory
    assert plan._divided(plan.MODELS[1], 6, 2, 16) is None  # 32B on one node

"""Plans of batches hold every sample once, and whole batches do not depend on the world size."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import numpy as np
from disteval.data.batching import Plan, WholeBatches
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(0, 60)
worlds = st.integers(1, 9)
batch_sizes = st.integers(1, 20)


def counted(plans: list[Plan]) -> list[int]:
    return [number for plan in plans for one in plan for number in one.indices[: one.counted]]


@given(sizes, worlds, batch_sizes, st.booleans(), st.integers(1, 20))
def test_every_sample_counts_once(
    size: int, world: int, batch_size: int, pad: bool, step: int
) -> None:
    plans = [WholeBatches(size, world, rank, batch_size, step, pad) for rank in range(world)]
    assert sorted(counted(plans)) == list(range(size))
    for plan in plans:
        batches = list(plan)
        assert len(batches) == len(plan)
        assert sum(len(one.indices) for one in batches) == plan.samples
        for one in batches:
            assert one.indices.dtype == np.int64
            assert 0 <= one.counted <= len(one.indices) <= one.rows <= batch_size
            assert len(one.indices) > 0
            assert one.rows in (batch_size, len(one.indices)) or one.rows % step == 0
            assert one.rows - len(one.indices) < step
    if pad:
        assert len({len(plan) for plan in plans}) == 1


@given(sizes, worlds, batch_sizes)
def test_whole_batches_are_the_same_at_any_world_size(
    size: int, world: int, batch_size: int
) -> None:
    plans = [WholeBatches(size, world, rank, batch_size, batch_size) for rank in range(world)]
    found = [(one.indices.tolist(), one.rows) for plan in plans for one in plan if one.counted]
    alone = WholeBatches(size, 1, 0, batch_size, batch_size)
    assert sorted(found) == [(one.indices.tolist(), one.rows) for one in alone]


def test_a_plan_of_very_many_samples_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        plan = WholeBatches(10**10, 3, 1, 256, 256)
        assert len(plan) > 10**7
        assert plan.samples > 3 * 10**9
        assert sum(one.counted for one in islice(plan, 100)) == 25600
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20

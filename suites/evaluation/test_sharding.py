"""Every sample is in exactly one shard, and padding is known for what it is."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from disteval import ShardPlan, UsageError
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(0, 60)
worlds = st.integers(1, 9)
modes = st.sampled_from(["strided", "contiguous"])


def _plans(size: int, world: int, mode: str, pad: bool) -> list[ShardPlan]:
    return [ShardPlan(size, world, rank, mode, pad) for rank in range(world)]


@given(sizes, worlds, modes, st.booleans())
def test_every_sample_counts_exactly_once(size: int, world: int, mode: str, pad: bool) -> None:
    plans = _plans(size, world, mode, pad)
    counted = np.concatenate([plan.indices[~plan.is_padding] for plan in plans])
    assert sorted(counted.tolist()) == list(range(size))
    assert sum(plan.num_samples for plan in plans) == size


@given(sizes, worlds, modes)
def test_padded_shards_have_one_length(size: int, world: int, mode: str) -> None:
    plans = _plans(size, world, mode, pad=True)
    assert {len(plan) for plan in plans} == {-(-size // world)}
    assert sum(int(plan.is_padding.sum()) for plan in plans) == -size % world


def test_samples_are_dealt_one_by_one_and_not_repeated_unless_asked() -> None:
    shards = [ShardPlan(5, 3, rank) for rank in range(3)]
    assert [shard.indices.tolist() for shard in shards] == [[0, 3], [1, 4], [2]]
    assert shards[0] == ShardPlan(5, 3, 0, "strided", pad=False)


def test_a_plan_does_not_change_under_its_indices() -> None:
    with pytest.raises(FrozenInstanceError):
        ShardPlan(5, 3, 0).rank = 1  # type: ignore[misc]


@given(sizes, worlds, modes)
def test_ragged_shards_differ_by_one_at_most(size: int, world: int, mode: str) -> None:
    lengths = [len(plan) for plan in _plans(size, world, mode, pad=False)]
    assert max(lengths) - min(lengths) <= 1


@given(sizes, worlds, modes, st.booleans())
def test_padding_sits_at_the_end_and_repeats_from_the_start(
    size: int, world: int, mode: str, pad: bool
) -> None:
    padding = []
    for plan in _plans(size, world, mode, pad):
        assert plan.is_padding.tolist() == sorted(plan.is_padding.tolist())
        assert plan.indices.dtype == np.int64
        padding += plan.indices[plan.is_padding].tolist()
    assert sorted(padding) == sorted(i % size for i in range(len(padding)))


@given(sizes, worlds)
def test_strided_is_what_torch_distributed_sampler_gives(size: int, world: int) -> None:
    # DistributedSampler's rule: repeat the index list up to a multiple of the world, then stride.
    total = -(-size // world) * world
    wrapped = [i % size for i in range(total)] if size else []
    for plan in _plans(size, world, "strided", pad=True):
        assert plan.indices.tolist() == wrapped[plan.rank :: world]


@given(sizes, worlds)
def test_contiguous_shards_follow_one_another(size: int, world: int) -> None:
    plans = _plans(size, world, "contiguous", pad=False)
    assert np.concatenate([plan.indices for plan in plans]).tolist() == list(range(size))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 1, 0), "size must be a whole number from 0 up, not -1"),
        ((2.0, 1, 0), "size must be a whole number from 0 up, not 2.0"),
        ((5, 0, 0), "world_size must be a whole number from 1 up, not 0"),
        ((5, 2, 2), "rank 2 is not in a world of 2 ranks"),
        ((5, 2, -1), "rank must be a whole number from 0 up, not -1"),
        ((5, 2, 0, "random"), "mode 'random' is not known"),
    ],
)
def test_bad_values_are_named(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardPlan(*arguments)

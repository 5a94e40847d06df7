"""Every sample is in exactly one shard, and padding is known for what it is."""

from dataclasses import FrozenInstanceError

import pytest
from disteval import ShardPlan, UsageError
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(0, 60)
worlds = st.integers(1, 9)


def _plans(size: int, world: int, mode: str, pad: bool) -> list[ShardPlan]:
    return [ShardPlan(size, world, rank, mode, pad) for rank in range(world)]


def test_samples_are_dealt_one_by_one_and_not_repeated_unless_asked() -> None:
    shards = [ShardPlan(5, 3, rank) for rank in range(3)]
    assert [shard.indices.tolist() for shard in shards] == [[0, 3], [1, 4], [2]]
    assert shards[0] == ShardPlan(5, 3, 0, "strided", pad=False)


def test_a_plan_does_not_change_under_its_indices() -> None:
    with pytest.raises(FrozenInstanceError):
        ShardPlan(5, 3, 0).rank = 1  # type: ignore[misc]


@given(sizes, worlds)
def test_strided_is_what_torch_distributed_sampler_gives(size: int, world: int) -> None:
    # DistributedSampler's rule: repeat the index list up to a multiple of the world, then stride.
    total = -(-size // world) * world
    wrapped = [i % size for i in range(total)] if size else []
    for plan in _plans(size, world, "strided", pad=True):
        assert plan.indices.tolist() == wrapped[plan.rank :: world]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((-1, 1, 0), ("size", "-1")),
        ((2.0, 1, 0), ("size", "2.0")),
        ((5, 0, 0), ("world_size", "0")),
        ((5, 2, 2), ("rank 2", "2 ranks")),
        ((5, 2, -1), ("rank", "-1")),
        ((5, 2, 0, "random"), ("mode", "'random'")),
    ],
)
def test_bad_values_are_named(arguments: tuple[object, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        ShardPlan(*arguments)
    assert all(word in str(caught.value) for word in words), caught.value

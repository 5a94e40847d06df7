"""Every sample is in exactly one shard, and padding is known for what it is."""

from itertools import product, zip_longest
from typing import Any

import pytest
from disteval import ShardPlan, UsageError


@pytest.mark.parametrize("mode", ["strided", "contiguous"])
def test_shares_hold_each_sample_once_and_then_padding_which_begins_anew(mode: Any) -> None:
    for size, world, pad in product(range(25), range(1, 10), (False, True)):
        plans = [ShardPlan(size, world, rank, mode, pad) for rank in range(world)]
        shares = [[*zip(plan.indices.tolist(), plan.is_padding, strict=True)] for plan in plans]
        turns = zip_longest(*shares) if mode == "strided" else shares
        dealt = [each for turn in turns for each in turn if each is not None]
        lengths = [*map(len, plans)]
        assert dealt == [(number % size, number >= size) for number in range(sum(lengths))]
        assert max(lengths) - min(lengths) <= 1 - pad and sum(lengths) - size < world
        assert sum(plan.num_samples for plan in plans) == size


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

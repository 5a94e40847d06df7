"""Batches of a stream by length are the same on any number of ranks, within bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.data import ShardedStream
from disteval.data.streams import Stream
from disteval.data.windows import BATCHES, ByLength
from hypothesis import given
from hypothesis import strategies as st

Batches = list[tuple[list[int], list[str]]]


def read(samples: Any, world: int, batch_size: int, by_length: ByLength) -> list[Batches]:
    """Return every rank's batches."""
    streams = [
        Stream(samples, rank, world, batch_size, by_length=by_length) for rank in range(world)
    ]
    return [[(ids.tolist(), kept) for ids, kept, _ in stream] for stream in streams]


def cost(batch: tuple[list[int], list[str]]) -> int:
    return len(batch[1]) * max(map(len, batch[1]))


@given(
    st.lists(st.integers(0, 30), max_size=300),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.none() | st.integers(30, 90),
    st.booleans(),
)
def test_every_element_is_in_one_batch_which_is_the_same_at_any_world_size(
    lengths: list[int], world: int, batch_size: int, sort: bool, budget: int | None, shards: bool
) -> None:
    texts = ["x" * length for length in lengths]
    by_length = ByLength(None, sort, budget)
    samples: Any = lambda: iter(texts)  # noqa: E731
    if shards:
        samples = ShardedStream(range(3), lambda shard: texts[shard::3])
    ranks = read(samples, world, batch_size, by_length)
    batches = [batch for rank in ranks for batch in rank]
    found = {number: text for ids, kept in batches for number, text in zip(ids, kept, strict=True)}
    assert sum(len(ids) for ids, _ in batches) == len(found) == len(texts)
    for number, text in found.items():
        place = (number >> 40) + 3 * (number & (2**40 - 1)) if shards else number
        assert text == texts[place]
    for batch in batches:
        assert len(batch[1]) <= batch_size
        assert budget is None or cost(batch) <= budget
    alone = [batch for rank in read(samples, 1, batch_size, by_length) for batch in rank]
    assert sorted(batches) == sorted(alone)
    if not shards:  # a rank reads whole shards, however long they are
        loads = [sum(map(cost, rank)) for rank in ranks]
        assert max(loads) - min(loads) <= batch_size * max(lengths, default=0)


def test_ranks_have_equal_work_over_many_windows() -> None:
    texts = ["x"] * (3 * BATCHES)  # the number of batches in a window is no multiple of 3
    ranks = read(lambda: iter(texts), 3, 1, ByLength(sort=True))
    assert [len(batches) for batches in ranks] == [BATCHES] * 3


def test_no_more_than_a_window_is_read_before_the_first_batch() -> None:
    taken = []

    def endless() -> Any:
        number = 0
        while True:
            taken.append(number)
            yield "x" * (number % 100)
            number += 1

    batches = iter(Stream(endless, 0, 2, 8, by_length=ByLength(sort=True)))
    _, first, _ = next(batches)
    assert [len(text) for text in first] == sorted((n % 100 for n in taken), reverse=True)[:8]
    assert len(taken) == BATCHES * 8


def test_wrong_lengths_of_elements_are_named() -> None:
    texts = ["x" * length for length in (3, 1, 7, 9)]
    with pytest.raises(UsageError, match=r"sample 3 .*9.* 2 of 4"):
        read(iter(texts), 1, 2, ByLength(max_tokens=5))
    with pytest.raises(UsageError, match=r"sample 2.*-7"):
        read(iter(texts), 1, 2, ByLength(lambda text: len(text) if len(text) < 7 else -7))
    with pytest.raises(UsageError, match="ndarray"):
        ByLength(np.arange(4))

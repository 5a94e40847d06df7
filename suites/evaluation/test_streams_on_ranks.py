"""Streams in processes of their own, each of which has another hash seed under MPI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from disteval import UsageError, evaluate
from disteval.data import ShardedStream
from disteval.errors import WorldError
from disteval.metrics import Regression
from disteval.worlds import World

from suites.helpers.needs import each

WORDS = ["one", "two", "three", "four", "five", "six"]


@pytest.fixture(scope="module", params=each("torch_cpu", "mpi4py"))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param, 3) as world:
        yield world


def elements(size: int) -> Iterator[dict[str, Any]]:
    """Yield elements whose sets, and the keys of whose dicts, have an order of the process's."""
    for i in range(size):
        lengths = {word: len(word) for word in {*WORDS}}
        yield {"x": np.full(3, i), "y": float(i), "words": {*WORDS[i % 3 :]}, "lengths": lengths}


def error_of(batch: Any) -> Any:
    return np.asarray(batch["y"]) + np.array([len(words) for words in batch["words"]])


def evaluated(backend: Any, make: Any) -> Any:
    result = evaluate(
        error_of,
        make,
        {"error": Regression()},
        backend,
        4,
        update=lambda out, batch: (out, batch["y"]),
    )
    return result.size, result.metrics["error"]["mae"]


def test_streams_are_the_same_whatever_the_order_of_sets(world: World) -> None:
    assert world.run(evaluated, *[lambda: elements(31)] * 3) == [(31, 156 / 31)] * 3
    shards = ShardedStream([5, 1, 7, 2], lambda size: elements(size))
    expected = [6 - i % 3 for size in (5, 1, 7, 2) for i in range(size)]
    assert world.run(evaluated, *[shards] * 3) == [(15, sum(expected) / 15)] * 3


def ends_early(backend: Any) -> Any:
    return evaluated(backend, lambda: elements(31 - (backend.rank == 1)))


def test_a_stream_that_ends_early_on_one_rank_is_an_error_on_every_rank(world: World) -> None:
    with pytest.raises(WorldError) as caught:
        world.run(ends_early)
    found = caught.value
    assert found.in_step
    assert isinstance(found.common, UsageError)
    assert re.search(r"\b31 .*rank 0\b.*\b30 .*rank 1\b", str(found.common))
    assert world.run(evaluated, *[lambda: elements(1)] * 3) == [(1, 6.0)] * 3

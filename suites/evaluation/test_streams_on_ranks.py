"""Streams in processes of their own, each of which has another hash seed under MPI."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from disteval import evaluate
from disteval.data import ShardedStream
from disteval.metrics import Regression
from disteval.world import World

from suites.helpers.needs import needs

WORDS = ["one", "two", "three", "four", "five", "six"]


def elements(size: int) -> Iterator[dict[str, Any]]:
    """Yield elements whose sets, and the keys of whose dicts, have an order of the process's."""
    for i in range(size):
        lengths = {word: len(word) for word in {*WORDS}}
        yield {"x": np.full(3, i), "y": float(i), "words": {*WORDS[i % 3 :]}, "lengths": lengths}


def evaluated(backend: Any, make: Any) -> Any:
    result = evaluate(
        lambda batch: np.asarray(batch["y"]) + np.array([len(words) for words in batch["words"]]),
        make, {"error": Regression()}, backend, 4, update=lambda out, batch: (out, batch["y"]),
    )  # fmt: skip
    return result.size, result.metrics["error"]["mae"]


@needs("mpi4py")
def test_streams_are_the_same_whatever_the_order_of_sets() -> None:
    shards = ShardedStream([5, 1, 7, 2], lambda size: elements(size))
    expected = [6 - i % 3 for size in (5, 1, 7, 2) for i in range(size)]
    with World("mpi4py", 2) as world:
        assert world.run(evaluated, *[lambda: elements(31)] * 2) == [(31, 156 / 31)] * 2
        assert world.run(evaluated, *[shards] * 2) == [(15, sum(expected) / 15)] * 2

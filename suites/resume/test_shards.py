"""Shards that ranks borrow have the results of one rank that reads them all."""

import re
from typing import Any

import numpy as np
import pytest
from disteval import HarnessError, Leases, RankError, UsageError, evaluate
from disteval.data import ShardedStream
from disteval.metrics import Mean

from suites.helpers.thread_world import assert_each_raised, run_ranks


def stream_of(lengths: list[int]) -> ShardedStream:
    rng = np.random.default_rng(len(lengths))
    shards = [[(rng.random(3), n % 3) for n in range(length)] for length in lengths]
    return ShardedStream(range(len(shards)), lambda shard: iter(shards[shard]))


@pytest.mark.parametrize("compared", [True, False])
def test_ranks_of_a_group_that_count_other_samples_of_a_lease_are_an_error_on_each(
    compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compared:
        monkeypatch.setenv("DISTEVAL_DIGEST", "off")

    def rank(backend: Any) -> Any:
        return evaluate(
            lambda x: x, stream_of([5, 5 - backend.rank]), {"m": Mean()}, backend, 2,
            update=lambda outputs, batch: (outputs[:, 0],), leases=Leases(group_size=2),
        )  # fmt: skip

    for found in run_ranks(2, rank):
        assert isinstance(found, HarnessError), found
        assert re.search(r"ranks? 0\b.* 1\b", str(found))


def test_a_shard_that_cannot_be_read_is_named_on_every_rank() -> None:
    def open_(shard: int) -> Any:
        yield from range(3)
        if shard == 2:
            raise OSError("the disk is gone")

    def rank(backend: Any) -> Any:
        return evaluate(
            lambda x: x, ShardedStream(range(4), open_), {"m": Mean()}, backend, 2,
            update=lambda outputs, batch: (outputs,), leases=Leases(),
        )  # fmt: skip

    assert_each_raised(run_ranks(3, rank), RankError, "shard '2'", "the disk is gone")


@pytest.mark.parametrize(
    ("samples", "limit", "said"),
    [(lambda: iter([1.0]), None, "ShardedStream"), (stream_of([3]), 2, "limit")],
)
def test_what_has_no_units_is_refused(samples: Any, limit: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        evaluate(lambda x: x, samples, {}, "non_dist", 2, limit=limit, leases=Leases())

"""Samplers that lose or repeat samples are detected, and the error names the samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from disteval import Coverage, CoverageError, ShardPlan
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import run_ranks


def padding_counted(size: int, world: int, rank: int) -> Any:
    """Distribute samples as DistributedSampler does, without marking its padding."""
    return ShardPlan(size, world, rank, pad=True).indices


def remainder_dropped(size: int, world: int, rank: int) -> Any:
    return np.arange(rank, size - size % world, world)


def same_shard_everywhere(size: int, world: int, rank: int) -> Any:
    return ShardPlan(size, world, 0).indices


def shuffled_by_a_seed_of_its_own(size: int, world: int, rank: int) -> Any:
    return np.random.default_rng(rank).permutation(size)[rank::world]


@pytest.mark.parametrize(
    ("share", "found"),
    [
        (padding_counted, r"\b2 .*\(0, 1\)"),
        (remainder_dropped, r"1 missing \(9\)"),
        (same_shard_everywhere, r"\b6 .*\(1, 2, 4, 5,"),
        (shuffled_by_a_seed_of_its_own, r"\d.* missing"),
    ],
)
def test_a_samplers_bug_is_an_error_on_every_rank(share: Any, found: str) -> None:
    def rank(backend: ThreadsDist) -> Any:
        coverage = Coverage(10, backend)
        coverage.count(share(10, 3, backend.rank))
        return coverage.certify()

    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, CoverageError)
        with pytest.raises(CoverageError, match=found):
            raise outcome

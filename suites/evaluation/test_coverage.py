"""Samplers that lose or repeat samples are detected, and the error names the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from disteval import CoverageError, ShardPlan, UsageError, evaluate
from disteval.coverage import Counted, certify, check_once
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import example, given
from hypothesis import strategies as st

from suites.evaluation.test_evaluate import numbered, read_label
from suites.helpers.thread_world import run_ranks, values


@dataclass
class Dealt:
    """A shard that a test makes by hand."""

    indices: Any
    is_padding: Any


def dealt(indices: Any, padding: int = 0) -> Dealt:
    found = np.array(indices, dtype=np.int64)
    return Dealt(found, np.arange(len(found)) >= len(found) - padding)


def padding_counted(size: int, world: int, rank: int) -> Dealt:
    """Distribute samples as DistributedSampler does, without marking its padding."""
    return dealt(ShardPlan(size, world, rank, pad=True).indices)


def remainder_dropped(size: int, world: int, rank: int) -> Dealt:
    return dealt(np.arange(rank, size - size % world, world))


def same_shard_everywhere(size: int, world: int, rank: int) -> Dealt:
    return dealt(ShardPlan(size, world, 0).indices)


def shuffled_by_a_seed_of_its_own(size: int, world: int, rank: int) -> Dealt:
    return dealt(np.random.default_rng(rank).permutation(size)[rank::world])


def run(shard: Callable[..., Any], size: int, world: int) -> list[Any]:
    def rank(backend: ThreadsDist) -> Any:
        return evaluate(read_label, numbered(size), {}, backend, 4, shard=shard).coverage

    return run_ranks(world, rank)


@pytest.mark.parametrize(
    ("shard", "found"),
    [
        (
            padding_counted,
            r"12 were counted of 10; 2 counted more than once \(0, 1\), of which 0 on ranks 0, 1",
        ),
        (remainder_dropped, r"9 were counted of 10; 1 missing \(9\)"),
        (same_shard_everywhere, r"12 were counted of 10; 6 missing \(1, 2, 4, 5, 7, …\); 4 count"),
        (shuffled_by_a_seed_of_its_own, r"10 were counted of 10; \d+ missing .* more than once"),
    ],
)
def test_a_samplers_bug_is_an_error_on_every_rank(shard: Any, found: str) -> None:
    for outcome in run(shard, 10, 3):
        assert isinstance(outcome, CoverageError)
        with pytest.raises(CoverageError, match=found):
            raise outcome


@given(st.integers(0, 40), st.integers(1, 5), st.data())
def test_any_way_of_dealing_every_sample_once_is_exact(
    size: int, world: int, data: st.DataObject
) -> None:
    owner = data.draw(st.lists(st.integers(0, world - 1), min_size=size, max_size=size))

    def shard(_size: int, _world: int, rank: int) -> Dealt:
        mine = [i for i, r in enumerate(owner) if r == rank]
        return dealt([*mine, *mine[:1]], padding=len(mine[:1]))

    assert values(run(shard, size, world)) == ["exact"] * world


@example([0, 1, 2, 3, 3, 6, 6, 7, 8, 9, 10, 11], 2)  # of the right number and the right sum
@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 4))
def test_the_certificate_holds_for_each_sample_once_alone(ids: list[int], world: int) -> None:
    size = 12

    def rank(backend: ThreadsDist) -> Any:
        mine = np.array(ids[backend.rank :: world], dtype=np.int64)
        check_once(backend.all_gather_object(certify(mine)), Counted(mine), size, backend)

    for outcome in run_ranks(world, rank):
        assert (outcome is None) == (sorted(ids) == list(range(size)))


def test_ids_outside_of_the_data_set_are_named() -> None:
    def rank(backend: ThreadsDist) -> Any:
        ids = np.array([0, 1, 7])
        check_once(backend.all_gather_object(certify(ids)), Counted(ids), 3, backend)

    (outcome,) = run_ranks(1, rank)
    assert isinstance(outcome, CoverageError)
    assert "1 missing (2); 1 not in the data set (7)" in str(outcome)


def test_padding_before_what_counts_is_refused() -> None:
    def shard(size: int, world: int, rank: int) -> Dealt:
        return Dealt(np.arange(2), np.array([True, False]))

    (outcome,) = run(shard, 2, 1)
    assert isinstance(outcome, UsageError)
    assert "padding must come after all samples that count" in str(outcome)

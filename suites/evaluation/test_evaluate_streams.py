"""Every element of a stream is evaluated once, and ranks agree on how many there were."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from disteval import Evaluation, RankError, UsageError, evaluate
from disteval.data import ShardedStream
from disteval.metrics import Mean
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.evaluation.test_evaluate_anything import Entries, Plain, twice
from suites.helpers.thread_world import run_ranks, values


def elements(size: int) -> Any:
    return ({"x": i, "label": 3 * i} for i in range(size))


def shards(sizes: list[int]) -> ShardedStream:
    """Return a stream whose elements are numbered on from shard to shard."""
    starts = np.cumsum([0, *sizes]).tolist()
    spans = [range(a, b) for a, b in pairwise(starts)]
    return ShardedStream(
        [f"shard {number}" for number in range(len(sizes))],
        lambda name: ({"x": i, "label": 3 * i} for i in spans[int(name.split()[1])]),
    )


@given(
    st.integers(1, 25), st.integers(1, 4), st.integers(1, 7), st.booleans(),
    st.integers(0, 1), st.none() | st.integers(1, 30),
)  # fmt: skip
def test_each_element_counts_once_in_order(
    size: int, world: int, batch_size: int, fixed: bool, workers: int, limit: int | None
) -> None:
    def rank(backend: ThreadsDist) -> Evaluation:
        return evaluate(
            twice, lambda: elements(size), {"entries": Entries()}, backend, batch_size,
            fixed_shape=fixed, workers=workers, limit=limit,
        )  # fmt: skip

    count = min(size, limit or size)
    for result in values(run_ranks(world, rank)):
        assert result.metrics["entries"] == [(2 * i, 3 * i) for i in range(count)]
        assert (result.size, result.padded) == (count, 0)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any), st.integers(1, 4))
def test_each_element_of_every_shard_counts_once_in_order(sizes: list[int], world: int) -> None:
    def rank(backend: ThreadsDist) -> Evaluation:
        return evaluate(twice, shards(sizes), {"entries": Entries()}, backend, 2)

    for result in values(run_ranks(world, rank)):
        assert result.metrics["entries"] == [(2 * i, 3 * i) for i in range(sum(sizes))]


def test_streams_that_differ_are_an_error_on_every_rank() -> None:
    def rank(backend: ThreadsDist) -> Any:
        return evaluate(twice, elements(9 - (backend.rank == 2)), {}, backend, 2)

    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, UsageError)
        assert "the stream differs between ranks: it has 9 elements on rank 0 and 8 on rank 2" in (
            str(outcome)
        )


def test_an_element_that_fails_on_one_rank_is_an_error_on_every_rank() -> None:
    def rank(backend: ThreadsDist) -> Any:
        def stream() -> Any:
            for number, element in enumerate(elements(9)):
                if backend.rank == 1 and number == 5:
                    raise OSError("torn")
                yield element

        return evaluate(twice, stream, {}, backend, 2)

    outcomes = run_ranks(2, rank)
    message = "rank 1 failed: sample 5 of the stream could not be read: OSError: torn"
    assert [str(outcome) for outcome in outcomes] == [message] * 2
    assert isinstance(outcomes[1], RankError)
    assert isinstance(outcomes[1].__cause__, OSError)


def test_what_was_opened_and_started_is_ended_when_predict_fails() -> None:
    closed = []

    def stream() -> Any:
        try:
            yield from elements(50)
        finally:
            closed.append(True)

    def predict(batch: Any) -> Any:
        raise ValueError("no")

    before = threading.active_count()
    with pytest.raises(RankError, match="in predict: ValueError: no"):
        evaluate(predict, stream, {}, "non_dist", 2, workers=1)
    assert closed == [True]
    assert threading.active_count() == before


def test_what_needs_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match="length is a ndarray, which needs samples that have"):
        evaluate(twice, elements(3), {}, "non_dist", 2, sort_by_length=True, length=np.arange(3))


@pytest.mark.parametrize("schedule", ["static", "leases"])
def test_a_metric_without_ids_has_its_entries_in_order_where_ranks_read_shards(
    schedule: Any,
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        found = evaluate(
            twice, shards([2, 3, 4]), {"plain": Plain()}, backend, 2, schedule=schedule
        )
        return found.metrics["plain"]

    assert values(run_ranks(2, rank)) == [[3 * i for i in range(9)]] * 2


@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_every_rank_calls_the_model_equally_often(size: int) -> None:
    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            backend.all_gather_object(len(batch))  # as a model does that spans the ranks
            return batch

        found = evaluate(predict, lambda: map(float, range(size)), {"mean": Mean()}, backend, 2)
        return found.metrics["mean"]["mean"], found.evaluated

    assert values(run_ranks(3, rank)) == [((size - 1) / 2, size)] * 3

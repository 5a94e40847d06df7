"""Every element of a stream is evaluated once, and ranks agree on how many there were."""

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from disteval import ByLength, Leases, RankError, UsageError, evaluate
from disteval.data import ShardedStream
from disteval.metrics import Mean
from disteval_backends.threads_dist import ThreadsDist

from suites.evaluation.test_evaluate_anything import Plain, twice
from suites.helpers.thread_world import assert_each_raised, run_ranks, values


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


def test_what_was_opened_and_started_is_ended_when_predict_fails() -> None:
    closed = []

    def stream() -> Any:
        try:
            yield from elements(50)
        finally:
            closed.append(True)

    def predict(batch: Any) -> Any:
        raise ValueError("no")

    before = {*threading.enumerate()}
    with pytest.raises(RankError, match=r"predict.*no"):
        evaluate(predict, stream, {}, "non_dist", 2, workers=1)
    assert closed == [True]
    started = {*threading.enumerate()} - before
    assert not [thread for thread in started if not type(thread).__module__.startswith("tqdm")]


def test_what_needs_a_length_is_refused() -> None:
    with pytest.raises(UsageError, match="ndarray"):
        evaluate(twice, elements(3), {}, "non_dist", 2, by_length=ByLength(np.arange(3)))


@pytest.mark.parametrize("leases", [None, Leases()])
def test_a_metric_without_ids_has_its_entries_in_order_where_ranks_read_shards(leases: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        found = evaluate(twice, shards([2, 3, 4]), {"plain": Plain()}, backend, 2, leases=leases)
        return found.metrics["plain"]

    assert values(run_ranks(2, rank)) == [[3 * i for i in range(9)]] * 2


def test_equally_many_calls_are_refused_in_leases() -> None:
    """Of which no rank knows how many another one gets; before the model is called."""
    calls: list[Any] = []

    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            calls.append(batch)
            return twice(batch)

        return evaluate(
            predict, [*elements(5)], {"mean": Mean()}, backend, 2, even_calls=True, leases=Leases()
        )

    assert_each_raised(run_ranks(2, rank), UsageError | RankError, "even_calls=True")
    assert not calls


def test_a_rank_that_fails_in_step_with_others_is_named_on_each() -> None:
    """Ranks that tell each other of every batch do not wait for one that has no more."""

    def rank(backend: ThreadsDist) -> Any:
        def predict(batch: Any) -> Any:
            if backend.rank == 1:
                raise ValueError("no good")
            return twice(batch)

        return evaluate(predict, shards([5, 3, 4]), {"mean": Mean()}, backend, 2, even_calls=True)

    assert_each_raised(run_ranks(3, rank), RankError, "no good", guilty=1)

"""Every element of a stream is evaluated once, and ranks agree on how many there were."""

from __future__ import annotations

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
def test_a_metric_without_ids_has_its_entries_in_order_where_ranks_read_shards(
    leases: Any,
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        found = evaluate(twice, shards([2, 3, 4]), {"plain": Plain()}, backend, 2, leases=leases)
        return found.metrics["plain"]

    assert values(run_ranks(2, rank)) == [[3 * i for i in range(9)]] * 2


@pytest.mark.parametrize(
    ("samples", "more"),
    [
        (lambda: shards([2, 3]), {}),
        (lambda: lambda: shards([2, 3]), {}),
        (lambda: elements(5), {"by_length": ByLength("x")}),
        (lambda: list(elements(5)), {"leases": Leases()}),
    ],
)
def test_equally_many_calls_are_refused_where_they_can_not_be_kept(samples: Any, more: Any) -> None:
    """Of ranks that read or borrow what the others do not know, before the model is called."""
    calls: list[Any] = []

    def rank(backend: ThreadsDist, even_calls: bool | None) -> Any:
        def predict(batch: Any) -> Any:
            calls.append(batch)
            return twice(batch)

        metrics = {"mean": Mean()}
        return evaluate(predict, samples(), metrics, backend, 2, even_calls=even_calls, **more)

    for outcome in run_ranks(2, lambda backend: rank(backend, True)):
        assert isinstance(outcome, UsageError | RankError)
        assert "even_calls=True" in str(outcome)
    assert not calls
    for found in values(run_ranks(2, lambda backend: rank(backend, None))):
        assert found.metrics["mean"]["mean"] == 4

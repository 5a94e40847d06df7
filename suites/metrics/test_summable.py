"""Sums count each sample once, in one small collective, whatever the ranks hold."""

from __future__ import annotations

import gc
import weakref
from itertools import permutations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from disteval import RankError, ShardPlan, UsageError, frames
from disteval.metrics import Accuracy, BaseMetric, MetricGroup, SummableMetric
from disteval.metrics.rows import Sums
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.thread_world import Counting, run_ranks, values

MODES: list[Literal["unzip", "cat"]] = ["unzip", "cat"]


class Total(SummableMetric):
    """A metric whose result is the number of samples and their sum, for numbers of any length."""

    def add(self, samples: Any) -> None:
        self._append(np.asarray(samples, dtype=np.int64))

    def sums_of(self, column: npt.NDArray[Any]) -> Sums:
        return np.array([len(column), (1 << 100) * int(column.sum())], dtype=object)

    def from_sums(self, sums: Sums, size: int) -> Any:
        assert sums[0] == size
        return size, int(sums[1]) >> 100


class Listed(BaseMetric):
    def add(self, samples: Any) -> None:
        self._results.extend(int(sample) for sample in samples)

    def compute_metric(self, results: list[Any]) -> Any:
        return results


def ordered(shards: list[list[int]], mode: str) -> list[int]:
    """Return the samples in the order of the data set."""
    if mode == "cat":
        return [sample for shard in shards for sample in shard]
    most = max(map(len, shards))
    return [shard[i] for i in range(most) for shard in shards if i < len(shard)]


shards_of_any_length = st.lists(st.lists(st.integers(0, 1000), max_size=9), min_size=1, max_size=5)


def test_a_metric_without_its_sums_can_not_be_made() -> None:
    for missing in ("add", "sums_of", "from_sums"):
        methods = {name: getattr(Total, name) for name in ("add", "sums_of", "from_sums")}
        methods.pop(missing)
        with pytest.raises(TypeError, match=missing):
            type("Unfinished", (SummableMetric,), methods)()


@given(shards_of_any_length, st.sampled_from(MODES), st.integers(1, 4), st.data())
def test_what_is_counted_is_the_beginning_of_the_data_set(
    shards: list[list[int]], mode: Any, batch: int, data: st.DataObject
) -> None:
    samples = ordered(shards, mode)
    size = data.draw(st.integers(0, len(samples)) | st.none())

    def rank(backend: ThreadsDist) -> Any:
        mine = shards[backend.rank]
        metric = Total(None, mode, backend)
        for start in range(0, len(mine), batch):
            metric.add(mine[start : start + batch])
        return metric.compute(size)

    expected = samples[:size]
    for outcome in run_ranks(len(shards), rank):
        if expected:
            assert outcome == (len(expected), sum(expected))
        else:
            assert isinstance(outcome, UsageError)
            assert "no samples" in str(outcome)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("shards", list(permutations([[1, 2, 4, 8], [16], [32, 64]])), ids=str)
def test_any_beginning_of_uneven_shards_is_counted(shards: Any, size: int, mode: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = Total(None, mode, backend)
        for sample in shards[backend.rank]:
            metric.add([sample])
        return metric.compute(size)

    assert values(run_ranks(3, rank)) == [(size, sum(ordered(shards, mode)[:size]))] * 3


@given(st.integers(1, 60), st.integers(1, 5), st.sampled_from(MODES), st.booleans())
def test_shards_as_samplers_deal_them_need_one_collective(
    size: int, world: int, collect: Any, pad: bool
) -> None:
    mode: Any = "strided" if collect == "unzip" else "contiguous"

    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        metric = Total(None, collect, counting)
        metric.add(ShardPlan(size, world, backend.rank, mode, pad).indices)
        return metric.compute(size), len(counting.sent)

    assert values(run_ranks(world, rank)) == [((size, size * (size - 1) // 2), 1)] * world


def test_what_travels_does_not_grow_with_the_data() -> None:
    def rank(backend: ThreadsDist) -> Any:
        sent = []
        for size in (1_000, 1_000_000):
            counting = Counting(backend)
            accuracy = Accuracy(dist_backend=counting)
            accuracy.add(np.zeros(size, np.uint8), np.zeros(size, np.uint8))
            accuracy.compute(2 * size - 1)
            sent.append((len(counting.sent), sum(counting.sent)))
        return sent

    assert values(run_ranks(2, rank)) == [[(1, frames.BLOCK_BYTES)] * 2] * 2


@given(st.integers(1, 30), st.integers(1, 4))
def test_a_group_shares_one_collective(size: int, world: int) -> None:
    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        group = MetricGroup({"b": Total(), "a": Total()}, counting)
        group.add(ShardPlan(size, world, backend.rank, "strided", True).indices)
        found = group.compute(size)
        return list(found), list(found.values()), len(counting.sent)

    total = (size, size * (size - 1) // 2)
    assert values(run_ranks(world, rank)) == [(["b", "a"], [total, total], 1)] * world


def test_a_group_also_gathers_what_cannot_be_summed() -> None:
    def rank(backend: ThreadsDist) -> Any:
        group = MetricGroup({"listed": Listed(), "total": Total()}, backend)
        group.add([backend.rank, backend.rank + 10])
        found = group.compute(3)
        group.reset()
        group.add([1])
        return found, group.compute(1)

    first = {"listed": [0, 1, 10], "total": (3, 11)}
    second = {"listed": [1], "total": (1, 1)}
    assert values(run_ranks(2, rank)) == [(first, second)] * 2


def test_ranks_may_name_the_metrics_of_a_group_in_any_order() -> None:
    def rank(backend: ThreadsDist) -> Any:
        names = ["a", "b", "c"][backend.rank :] + ["a", "b", "c"][: backend.rank]
        metrics: dict[str, BaseMetric] = {n: Listed() if n == "b" else Total() for n in names}
        metrics["d"] = Listed()
        for name, metric in metrics.items():
            metric.add([ord(name)])
        found = MetricGroup(metrics, backend).compute()
        return list(found) == [*names, "d"], sorted(found.items())

    a, b, c, d = (3, 3 * ord("a")), [ord("b")] * 3, (3, 3 * ord("c")), [ord("d")] * 3
    expected = [("a", a), ("b", b), ("c", c), ("d", d)]
    assert values(run_ranks(3, rank)) == [(True, expected)] * 3


def test_a_rank_that_cannot_sum_is_an_error_on_every_rank() -> None:
    class Failing(Total):
        def sums_of(self, column: npt.NDArray[Any]) -> Sums:
            if (column == 7).all():
                raise ArithmeticError("not seven")
            return super().sums_of(column)

    def rank(backend: ThreadsDist) -> Any:
        metric = Failing(dist_backend=backend)
        # Rank 1's padding is a seven, which it has to take off its sum.
        metric.add([1, 1, 7] if backend.rank else [1, 1, 1])
        return metric.compute(5)

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, RankError)
        assert "rank 1 could not sum up Failing: ArithmeticError: not seven" in str(outcome)


def test_a_call_counts_these_samples_alone() -> None:
    metric = Total(dist_backend="non_dist")
    metric.add([1, 2, 3])
    assert metric([7, 8]) == (2, 15)
    assert metric.compute() == (3, 6)
    metric.reset()
    with pytest.raises(UsageError, match="no samples"):
        metric.compute()


@pytest.mark.parametrize("size", [-1, 2.5, "3", True, 4])
def test_a_size_that_can_not_be_is_an_error(size: Any) -> None:
    metric = Total(dist_backend="non_dist")
    metric.add([1, 2, 3])
    with pytest.raises(UsageError, match=r"size must be a whole number from 0 up|1 are missing"):
        metric.compute(size)


def test_rows_can_be_computed_at_once() -> None:
    assert Total().compute_metric([1, 2, 3]) == (3, 6)


class Later(Total):
    """A metric whose rows are fetched later, as from a device."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.brought: list[int] = []

    def add(self, samples: Any) -> None:
        rows = np.asarray(samples, dtype=np.int64)

        def bring() -> npt.NDArray[Any]:
            self.brought.extend(rows.tolist())
            return rows

        self._append_later(len(rows), bring)


def test_adding_does_not_wait_for_a_device_and_what_queues_up_has_a_bound() -> None:
    metric = Later(dist_backend="non_dist")
    late = []
    for sample in range(20):
        metric.add([sample])
        late.append(sample + 1 - len(metric.brought))
    assert late[0] == 1, "the first batch was waited for"
    assert max(late) == late[-1] < 10
    assert metric.compute() == (20, sum(range(20)))
    assert metric.brought == list(range(20))


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(-99, 99), max_size=4)), max_size=12),
    st.data(),
)
def test_rows_that_come_late_keep_their_place(
    batches: list[tuple[bool, list[int]]], data: st.DataObject
) -> None:
    plain, mixed = Total(dist_backend="non_dist"), Later(dist_backend="non_dist")
    for late, samples in batches:
        plain.add(samples)
        (mixed.add if late else super(Later, mixed).add)(samples)
    count = sum(len(samples) for _, samples in batches)
    size = data.draw(st.integers(0, count))
    if size:
        assert mixed.compute(size) == plain.compute(size)


def test_rows_are_freed_with_their_metric() -> None:
    metric = Total(dist_backend="non_dist")
    metric.add(np.zeros(1000))
    there = weakref.ref(metric)
    gc.disable()
    try:
        del metric
        assert there() is None, "the rows wait for the garbage collector"
    finally:
        gc.enable()

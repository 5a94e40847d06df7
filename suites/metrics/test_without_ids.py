"""Without ids what counts is the beginning of the data set, in one small collective."""

import gc
import weakref
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from disteval import ShardPlan, UsageError
from disteval.metrics import BaseMetric, MetricGroup, SummableMetric
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given
from hypothesis import strategies as st

from suites.helpers.thread_world import Counting, assert_each_raised, run_ranks, values
from suites.properties.cases import Entries

MODES: list[Literal["unzip", "cat"]] = ["unzip", "cat"]
SHARDS: Any = {"unzip": "strided", "cat": "contiguous"}


class Total(SummableMetric):
    """A metric whose result is the number of samples and their sum, for numbers of any length."""

    def add(self, samples: Any) -> None:
        self._append(np.asarray(samples, dtype=np.int64))

    def sums_of(self, column: npt.NDArray[Any]) -> Any:
        return np.array([len(column), (1 << 100) * int(column.sum())], dtype=object)

    def from_sums(self, sums: Any, size: int) -> Any:
        assert sums[0] == size
        return size, int(sums[1]) >> 100


class Listed(Entries):
    """A metric of entries whose ``add`` takes no ids."""

    def add(self, samples: Any) -> None:  # type: ignore[override]
        self._extend(int(sample) for sample in samples)


def result_of(make: Any, samples: list[int]) -> Any:
    return samples if make is Listed else (len(samples), sum(samples))


def ordered(shards: list[list[int]], mode: str) -> list[int]:
    """Return the samples in the order of the data set."""
    if mode == "cat":
        return [sample for shard in shards for sample in shard]
    most = max(map(len, shards))
    return [shard[i] for i in range(most) for shard in shards if i < len(shard)]


def computed(make: Any, shards: list[Any], mode: Any, batch: int, size: int | None) -> list[Any]:
    def rank(backend: ThreadsDist) -> Any:
        mine = shards[backend.rank]
        metric = make(dist_collect_mode=mode, dist_backend=backend)
        for start in range(0, len(mine), batch):
            metric.add(mine[start : start + batch])
        return metric.compute(size)

    return run_ranks(len(shards), rank)


shards_of_any_length = st.lists(st.lists(st.integers(0, 1000), max_size=9), min_size=1, max_size=5)


@pytest.mark.parametrize("make", [Total, Listed])
@given(shards_of_any_length, st.sampled_from(MODES), st.integers(1, 4), st.data())
def test_what_is_counted_is_the_beginning_of_the_data_set(
    make: Any, shards: list[list[int]], mode: Any, batch: int, data: st.DataObject
) -> None:
    samples = ordered(shards, mode)
    size = data.draw(st.integers(0, len(samples)) | st.none())
    for outcome in computed(make, shards, mode, batch, size):
        if samples[:size] or make is Listed:
            assert outcome == result_of(make, samples[:size])
        else:
            assert isinstance(outcome, UsageError)
    assert_each_raised(
        computed(make, shards, mode, batch, len(samples) + 3), UsageError, "3 are missing"
    )


@given(st.integers(1, 60), st.integers(1, 5), st.sampled_from(MODES), st.booleans())
def test_a_group_needs_one_collective_and_one_more_where_samples_are_dropped(
    size: int, world: int, mode: Any, pad: bool
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        group = MetricGroup({"b": Total(None, mode), "a": Total(None, mode)}, counting)
        group.add(ShardPlan(size, world, backend.rank, SHARDS[mode], pad).indices)
        found = group.compute(size)
        return list(found.items()), len(counting.sent)

    total = result_of(Total, [*range(size)])
    collectives = 2 if pad and size % world else 1
    assert values(run_ranks(world, rank)) == [([("b", total), ("a", total)], collectives)] * world


def test_entries_of_any_kind_come_back_as_they_were_and_only_rank_0_computes() -> None:
    kept: list[Any] = [
        [True, False], [1, 1 << 70], [-(1 << 63), (1 << 63) - 1], [0.5, -0.0], ["a", b"b", None],
        [np.float32(1), np.uint8(2)], [np.ones(2), np.ones(3)], [(1, 2.0), (3, 4.0)],
        [(1,), (1, 2)], [np.array([1 + 1j]), np.array([None])], [(), ()],
    ]  # fmt: skip
    computed_on = []

    class Kept(BaseMetric):
        def add(self, entries: Any) -> None:
            self._extend(entries)

        def compute_metric(self, results: list[Any]) -> Any:
            computed_on.append(self.dist_backend.rank)
            return [(type(entry), repr(entry)) for entry in results]

    for entries in kept:

        def rank(backend: ThreadsDist, entries: Any = entries) -> Any:
            metric = Kept(dist_backend=backend)
            metric.add(entries[backend.rank :: 2])
            return metric.compute()

        expected = [(type(entry), repr(entry)) for entry in entries]
        assert values(run_ranks(2, rank)) == [expected] * 2
    assert {*computed_on} == {0}


def test_metrics_of_entries_share_two_more_collectives_and_a_compute_of_ones_own_is_called() -> (
    None
):
    class Own(Total):
        """A metric that computes in its own way."""

        def compute(self, size: int | None = None) -> Any:
            return "own", super().compute(size)

    def rank(backend: ThreadsDist) -> Any:
        sent = []
        for own in ({}, {"own": Own()}):
            counting = Counting(backend)
            metrics: Any = {"a": Listed(), "b": Listed(), "c": Total(), **own}
            group = MetricGroup(metrics, counting)
            group.add([backend.rank])
            sent.append((group.compute(2), len(counting.sent)))
        return sent

    shared = {"a": [0, 1], "b": [0, 1], "c": (2, 1)}
    expected = [(shared, 3), (shared | {"own": ("own", (2, 1))}, 4)]
    assert values(run_ranks(2, rank)) == [expected] * 2


@pytest.mark.parametrize("make", [Total, Listed])
def test_a_call_counts_these_samples_alone_and_a_reset_forgets_all(make: Any) -> None:
    metric = make(dist_backend="non_dist")
    metric.add([1, 2, 3])
    assert metric([7, 8]) == result_of(make, [7, 8])
    with pytest.raises(TypeError):
        metric(object())
    assert metric.compute() == result_of(make, [1, 2, 3])
    assert metric.compute(2) == result_of(make, [1, 2])
    metric.reset()
    metric.add([4])
    assert metric.compute() == result_of(make, [4])
    assert make().compute_metric([1, 2, 3]) == result_of(make, [1, 2, 3])


class Later(Total):
    """A metric whose rows are fetched later, as from a device."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.came: list[int] = []

    def add(self, samples: Any) -> None:
        rows = np.asarray(samples, dtype=np.int64)

        def bring() -> npt.NDArray[Any]:
            self.came.extend(rows.tolist())
            return rows

        self._append(bring, length=len(rows))


def test_adding_does_not_wait_for_a_device_and_what_queues_up_has_a_bound() -> None:
    metric = Later(dist_backend="non_dist")
    late = []
    for sample in range(20):
        metric.add([sample])
        late.append(sample + 1 - len(metric.came))
    assert late[0] == 1, "the first batch was waited for"
    assert max(late) == late[-1] < 10
    assert metric.compute() == (20, sum(range(20)))
    assert metric.came == list(range(20))


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
    size = data.draw(st.integers(0, sum(len(samples) for _, samples in batches)))
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

"""With ids each sample counts once, or it is named: missing, foreign or with two values."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from disteval import CoverageError, UsageError, frames
from disteval.metrics import (
    BaseMetric,
    ConfusionMatrix,
    Mean,
    MetricGroup,
    SampleRows,
    SummableMetric,
)
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import example, given
from hypothesis import strategies as st

from suites.helpers.thread_world import Counting, assert_each_raised, run_ranks, values
from suites.properties.cases import Entries


def test_a_size_that_nothing_can_hold_is_an_error_at_once() -> None:
    mean = Mean(dist_backend="non_dist")
    mean.add([1.0], ids=[1])
    with pytest.raises(CoverageError, match=rf"{10**17 - 1} missing \(0, 2, 3, 4, 5, …\)"):
        mean.compute(10**17)


@pytest.mark.parametrize("make", [Mean, Entries])
def test_a_loss_that_is_rounded_otherwise_in_another_batch_counts_once(make: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = make(dist_backend=backend)
        metric.add(np.array([1.0, 2.0 + 1e-6 * backend.rank]), ids=[backend.rank + 1, 0])
        return metric.compute(3)

    assert values(run_ranks(2, rank)) in ([{"mean": 4 / 3}] * 2, [[2.0, 1.0, 1.0]] * 2)


class Squares(SummableMetric):
    """The mean of the squares of small integers, which the rows hold as floats."""

    def add(self, values: Any, *, ids: Any = None) -> None:
        self._append(np.asarray(values), ids)

    def sums_of(self, column: npt.NDArray[Any]) -> Any:
        return (column.astype(np.int64) ** 2).sum(axis=0, keepdims=True)

    def from_sums(self, sums: Any, size: int) -> Any:
        return sums.tolist(), size


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (Mean, [6.0, 0.0, 0.0], [6.0]),  # the same sum of another number of rows
        (Mean, [1.7e308] * 2, [1e308] * 2),  # both sums overflow
        (Mean, [math.inf], [-math.inf]),
        (Mean, [], [0.0]),
        (Squares, [1.0, -1.0], [2.0, -2.0]),
        (Squares, np.float16([60000] * 2), np.float16([50000] * 2)),
        (Squares, [[1.0, 2.0]], [[2.0, 1.0]]),
    ],
)
def test_rows_of_a_sample_that_differ_are_an_error_on_every_rank(
    make: Any, one: Any, other: Any
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = make(dist_backend=backend)
        rows = np.asarray(other if backend.rank else one)
        metric.add(np.zeros_like(one), ids=SampleRows([backend.rank + 1], len(one)))
        metric.add(rows, ids=SampleRows([0], len(rows)))
        return metric.compute(3)

    assert_each_raised(run_ranks(2, rank), CoverageError, "sample 0 ")


def test_of_several_samples_with_two_values_the_first_is_named_with_its_ranks() -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = Mean(dist_backend=backend)
        metric.add([backend.rank] * 2, ids=[backend.rank + 4, backend.rank + 5])
        return metric.compute()

    words = ("sample 5 ", "on rank 0 and another on rank 1", "2 samples", "(5, 6)")
    assert_each_raised(run_ranks(3, rank), CoverageError, *words)


def test_values_that_are_equal_and_samples_without_rows_are_no_conflict() -> None:
    def rank(backend: ThreadsDist) -> Any:
        rows = Entries(dist_backend=backend)
        rows.add(np.ones((2, 3)) + 1e-7 * backend.rank, ids=[0, 1])
        matrix = ConfusionMatrix(2, dist_backend=backend)
        labels = np.zeros(backend.rank, int)  # sample 0 has no row, and rank 0 has nothing else
        some = slice(backend.rank + 1)
        matrix.add(labels, labels, ids=SampleRows([0, 1][some], [0, 1][some]))
        mean = Mean(dist_backend=backend)
        mean.add(np.array([0.0 if backend.rank else -0.0, 5.0]), ids=[0, 1])
        return rows.compute(2), matrix.compute(2)["matrix"].tolist(), mean.compute(2)

    expected = [[1.0] * 3] * 2, [[1, 0], [0, 0]], {"mean": 2.5}
    assert values(run_ranks(2, rank)) == [expected] * 2


@pytest.mark.parametrize("make", [Squares, Entries])
def test_memory_that_a_caller_reuses_does_not_change_what_was_added(make: Any) -> None:
    metric, batch, ids = make(dist_backend="non_dist"), np.zeros((2, 1)), np.array([0, 1])
    for number in range(3):
        batch[:] = number
        metric.add(batch, ids=ids)
        ids += 2
    assert metric.compute(6) in (([[10]], 6), [[0.0], [0.0], [1.0], [1.0], [2.0], [2.0]])


BAD_IDS: list[tuple[Any, tuple[str, ...]]] = [
    ([0.0, 1.0], ("ids", "float64")),
    ([True, False], ("ids", "bool")),
    (["a", "b"], ("ids", "'a'")),
    ([None, 1], ("ids", "None")),
    ([[1], [1, 2]], ("ids",)),
    ([0, -1], ("ids", "-1")),
    (np.array([0, 1 << 63], np.uint64), ("ids", "9223372036854775808")),
    ([0], ("ids", "1 rows", "has 2", "SampleRows")),
    (3, ("ids", "()")),
    ([[0], [1]], ("ids", "(2, 1)")),
    (SampleRows([0], 1), ("ids", "1 rows", "has 2")),
    (SampleRows([0, 1], [3, -1]), ("SampleRows.rows", "-1")),
    (SampleRows([0, 1], [2, 0, 0]), ("ids", "(2,)", "(3,)")),
    (SampleRows(0, 2), ("ids", "()")),
    (SampleRows([0], 2.0), ("SampleRows.rows", "float64")),
]


@pytest.mark.parametrize(("ids", "words"), BAD_IDS, ids=[str(each) for each, _ in BAD_IDS])
@pytest.mark.parametrize("make", [Mean, Entries])
def test_ids_that_can_not_be_are_refused_and_nothing_is_added(
    make: Any, ids: Any, words: tuple[str, ...]
) -> None:
    metric = make(dist_backend="non_dist")
    metric.add(np.array([1.0]), ids=[0])
    with pytest.raises(UsageError) as caught:
        metric.add(np.array([5.0, 7.0]), ids=ids)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    metric.add(np.array([3.0]), ids=[1])
    assert metric.compute(2) in ({"mean": 2.0}, [1.0, 3.0])


@pytest.mark.parametrize("make", [Mean, Entries])
def test_ids_for_some_batches_or_ranks_only_are_refused(make: Any) -> None:
    with_some, without = make(), make()
    with_some.add(np.ones(2), ids=[0, 1])
    with_some.add(np.ones(0))  # an empty batch has nothing to number
    with pytest.raises(UsageError, match="has no ids"):
        with_some.add(np.ones(1))
    without.add(np.ones(2))
    with pytest.raises(UsageError, match="has ids"):
        without.add(np.ones(1), ids=[0])

    def rank(backend: ThreadsDist) -> Any:
        metric = make(dist_backend=backend)
        if backend.rank:
            metric.add([1.0], ids=None if backend.rank % 2 else [0])
        return metric.compute()

    assert_each_raised(run_ranks(5, rank), UsageError, "rank 2 ", "rank 1 ")


def test_a_group_refuses_ids_that_one_of_its_metrics_does_not_take() -> None:
    class Plain(BaseMetric):
        def add(self, values: Any) -> None:
            self._extend(values)

        def compute_metric(self, results: list[Any]) -> Any:
            return results

    group = MetricGroup({"mean": Mean(), "plain": Plain()}, "non_dist")
    with pytest.raises(UsageError, match=r"'plain'.*Plain\.add"):
        group.add([1.0], ids=[0])
    group.add([2.0])
    assert group.compute() == {"mean": {"mean": 2.0}, "plain": [2.0]}


def test_samples_that_were_added_once_need_one_small_collective_and_no_value_travels() -> None:
    def rank(backend: ThreadsDist) -> Any:
        found = []
        for size in (7, 5000):
            counting = Counting(backend)
            group = MetricGroup({"a": Mean(), "b": Mean()}, counting)
            ids = np.random.default_rng(0).permutation(size)[backend.rank :: 2]
            group.add(ids, ids=ids)
            found.append((group.compute(size)["b"]["mean"], counting.sent))
        repeated = Mean(dist_backend=counting)
        ids = np.append(np.arange(5000)[backend.rank :: 2], 0)
        repeated.add(ids, ids=ids)
        return [*found, (repeated.compute(5000)["mean"], counting.sent[-1])]

    once = [frames.BLOCK_BYTES]
    expected = [(3.0, once), (2499.5, [*once]), (2499.5, once[0])]
    for found in values(run_ranks(2, rank)):
        assert [found[0], (found[1][0], found[1][1][:1]), found[2]] == expected


def test_ids_may_be_reset_and_taken_from_a_call() -> None:
    mean = Mean(dist_backend="non_dist")
    mean.add([1.0, 3.0], ids=[0, 1])
    assert mean([5.0, 5.0], ids=[9, 9]) == {"mean": 5.0}
    assert mean.compute(2) == {"mean": 2.0}
    mean.add([5.0, 1.0], ids=[2, 0])
    assert mean.compute(3) == {"mean": 3.0}
    mean.reset()
    mean.add([8.0])
    assert mean.compute(1) == {"mean": 8.0}


@example([[3, 3], [], [3]])
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8))
def test_rows_from_a_device_keep_their_ids(batches: list[list[int]]) -> None:
    class Numbered(Squares):
        def add(self, samples: Any, ids: Any = None) -> None:
            rows: npt.NDArray[Any] = np.asarray(samples, dtype=np.int64)
            self._append(lambda: rows, ids, length=len(rows))

    metric = Numbered(dist_backend="non_dist")
    for batch in batches:
        metric.add(batch, ids=batch)
    distinct = {each for batch in batches for each in batch}
    if distinct:
        assert metric.compute() == ([sum(each**2 for each in distinct)], len(distinct))

"""With ids a metric counts each sample once, whatever the sampler did, or names what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from disteval import CoverageError, RankError, ShardPlan, UsageError, frames
from disteval.conformance.fingerprint import digest
from disteval.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    BaseMetric,
    ConfusionMatrix,
    CrossEntropy,
    Mean,
    MetricGroup,
    SampleRows,
    SummableMetric,
)
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suites.helpers.thread_world import Counting, run_ranks, values
from suites.metrics.test_summable import Later, Total

MOST = 20
_random = np.random.default_rng(7)
SCORES = _random.integers(-3, 4, (MOST, 4)) / np.float32(3)
SCORES[5] = np.nan
LABELS = _random.integers(0, 4, MOST)
LOSSES = _random.normal(size=MOST) * 10.0 ** _random.integers(-30, 30, MOST)
LOSSES[3], LOSSES[4] = -0.0, math.inf


class Listed(BaseMetric):
    """A metric whose result is the list of its entries, whose order therefore matters."""

    def add(self, scores: Any, labels: Any, *, ids: Any = None) -> None:
        self._extend(zip(map(tuple, scores.tolist()), labels.tolist(), strict=True), ids)

    def compute_metric(self, results: list[Any]) -> Any:
        return results


Inputs = Callable[[Any], tuple[Any, ...]]
METRICS: dict[str, tuple[Callable[[], BaseMetric], Inputs]] = {
    "accuracy": (lambda: Accuracy((1, 3), counts=True), lambda i: (SCORES[i], LABELS[i])),
    "confusion": (lambda: ConfusionMatrix(4), lambda i: (SCORES[i], LABELS[i])),
    "cross entropy": (CrossEntropy, lambda i: (SCORES[i], LABELS[i])),
    "mean": (Mean, lambda i: (LOSSES[i],)),
    "average precision": (AveragePrecision, lambda i: (LOSSES[i], i % 2)),
    "auroc": (AUROC, lambda i: (LOSSES[i], i % 2)),
    "entries": (Listed, lambda i: (SCORES[i], LABELS[i])),
    "entries of one type": (Listed, lambda i: (SCORES[i, :0], LABELS[i])),
}


def alone(name: str, ids: Any) -> Any:
    """Compute in one process, each sample once, in the order of the data set and without ids."""
    make, inputs = METRICS[name]
    metric = make()
    metric.dist_backend = "non_dist"
    metric.add(*inputs(ids))
    return digest(metric.compute())


def everywhere(name: str, shards: list[list[list[int]]], size: int | None) -> list[Any]:
    """Compute on ranks that have these batches of ids."""
    make, inputs = METRICS[name]

    def rank(backend: ThreadsDist) -> Any:
        metric = make()
        metric.dist_backend = backend
        for batch in shards[backend.rank]:
            ids = np.array(batch, dtype=np.int64)
            metric.add(*inputs(ids), ids=ids)
        return digest(metric.compute(size))

    return values(run_ranks(len(shards), rank))


@st.composite
def dealt(draw: st.DrawFn) -> tuple[int, list[list[list[int]]]]:
    """Draw a size, and batches for each rank that together have every sample once or more."""
    size, world = draw(st.integers(2, MOST)), draw(st.integers(1, 4))
    ids = [*range(size), *draw(st.lists(st.integers(0, size - 1), max_size=MOST))]
    ids = draw(st.permutations(ids))
    shards: list[list[int]] = [[] for _ in range(world)]
    for each in ids:
        shards[draw(st.integers(0, world - 1))].append(each)
    batch = draw(st.integers(1, 6))
    return size, [[s[i : i + batch] for i in range(0, len(s), batch)] for s in shards]


@pytest.mark.parametrize("name", METRICS)
def test_any_way_of_dealing_gives_the_result_of_one_process(name: str) -> None:
    @given(dealt(), st.booleans())
    @settings(max_examples=40)
    def check(drawn: tuple[int, Any], proved: bool) -> None:
        size, shards = drawn
        found = everywhere(name, shards, size if proved else None)
        assert found == [alone(name, np.arange(size))] * len(shards)

    check()


def every_rank_reads_everything(size: int, world: int, rank: int) -> list[list[int]]:
    return [list(range(size))]


def padded_and_shuffled(size: int, world: int, rank: int) -> list[list[int]]:
    order = np.random.default_rng(1).permutation(size)
    return [order[ShardPlan(size, world, rank, pad=True).indices].tolist()]


def buckets_of_length(size: int, world: int, rank: int) -> list[list[int]]:
    """Deal batches of samples of similar length, and fill the last ones up with earlier samples."""
    order = sorted(range(size), key=lambda i: i % 5)
    batches = [(order + order)[start : start + 4] for start in range(0, size, 4)]
    return (batches * world)[rank : -(-len(batches) // world) * world : world]


def oversampled(size: int, world: int, rank: int) -> list[list[int]]:
    return [[i, i] for i in range(rank, size, world)]


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "sampler", [every_rank_reads_everything, padded_and_shuffled, buckets_of_length, oversampled]
)
def test_samplers_that_repeat_samples_change_nothing(sampler: Any, world: int, name: str) -> None:
    shards = [sampler(13, world, rank) for rank in range(world)]
    assert everywhere(name, shards, 13) == [alone(name, np.arange(13))] * world


VALUES = np.split(LOSSES, np.cumsum([2, 0, 3, 1, 5]))  # of six samples, of which one has none
LENGTHS = np.array([len(each) for each in VALUES])


class Words(BaseMetric):
    def add(self, words: Any, *, ids: Any = None) -> None:
        self._extend(words, ids)

    def compute_metric(self, results: list[Any]) -> Any:
        return results


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=4))
def test_a_sample_may_have_several_rows_or_none(shards: list[list[int]]) -> None:
    shards[0] = [5, 4, 3, 2, 1, 0, *shards[0]]

    def rank(backend: ThreadsDist) -> Any:
        group = MetricGroup({"mean": Mean(), "rows": Words()}, backend)
        for at in range(0, len(shards[backend.rank]), 3):
            ids = np.array(shards[backend.rank][at : at + 3])
            rows = np.concatenate([VALUES[i] for i in ids])
            group.add(rows, ids=SampleRows(ids, LENGTHS[ids]))
        return group.compute(size=6)

    mean = Mean(dist_backend="non_dist")
    mean.add(LOSSES)
    for found in values(run_ranks(len(shards), rank)):
        assert found["mean"] == mean.compute()
        assert found["rows"] == LOSSES.tolist()


def test_every_sample_may_have_as_many_rows() -> None:
    pictures = np.arange(24).reshape(3, 4, 2) % 3  # of three pictures, 4 x 2 pixels

    def rank(backend: ThreadsDist) -> Any:
        matrix = ConfusionMatrix(3, dist_backend=backend)
        for i in (backend.rank, 2):
            pixels = pictures[[i]].reshape(-1)
            matrix.add(pixels, pixels, ids=SampleRows([i], 8))
        return matrix.compute(size=3)["matrix"].tolist()

    assert values(run_ranks(2, rank)) == [np.diag([8, 8, 8]).tolist()] * 2


@pytest.mark.parametrize("name", METRICS)
def test_what_is_missing_or_does_not_belong_is_named_on_every_rank(name: str) -> None:
    shards = [[[0, 1, 1, 5]], [[19, 18, 0]], []]
    message = r"5 different samples, but size=18: 15 missing \(2, 3, 4, 6, 7, …\); 2 not in the "
    make, inputs = METRICS[name]

    def rank(backend: ThreadsDist) -> Any:
        metric = make()
        metric.dist_backend = backend
        for batch in shards[backend.rank]:
            metric.add(*inputs(np.array(batch)), ids=batch)
        with pytest.raises(CoverageError, match=message):
            metric.compute(18)
        return True

    assert values(run_ranks(3, rank)) == [True] * 3


@pytest.mark.parametrize("name", METRICS)
def test_as_many_samples_as_the_data_set_has_are_not_all_of_them(name: str) -> None:
    with pytest.raises(CoverageError, match=r"3 different samples, but size=4: 1 missing \(2\)"):
        everywhere(name, [[[0, 1]], [[1, 3]]], 4)


def test_a_size_that_nothing_can_hold_is_an_error_at_once() -> None:
    mean = Mean(dist_backend="non_dist")
    mean.add([1.0], ids=[1])
    with pytest.raises(CoverageError, match=rf"{10**17 - 1} missing \(0, 2, 3, 4, 5, …\)"):
        mean.compute(10**17)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("guilty", [0, 1, 2])
def test_a_sample_with_two_values_is_an_error_that_names_it(name: str, guilty: int) -> None:
    make, inputs = METRICS[name]

    def rank(backend: ThreadsDist) -> Any:
        metric = make()
        metric.dist_backend = backend
        metric.add(*inputs(np.array([0, 8, 7, 6])), ids=[0, 8, 7, 6])
        other = 7 if backend.rank == guilty else 8
        metric.add(*inputs(np.array([other, 1])), ids=[8, 1])
        return metric.compute()

    first, second = (0, 0) if guilty == 0 else (0, guilty)
    message = f"sample 8 was added with one value on rank {first} and another on rank {second}; 1 "
    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, CoverageError)
        assert message in str(outcome)


@pytest.mark.parametrize("make", [Mean, Words])
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
        (Mean, [math.inf], [math.nan]),
        (Mean, [math.inf, math.nan], [math.inf, 1.0]),
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

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, CoverageError)
        assert "sample 0 was added with one value on rank 0 and another on rank 1" in str(outcome)


def test_of_several_samples_with_two_values_the_first_is_named_with_its_ranks() -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = Mean(dist_backend=backend)
        metric.add([backend.rank] * 2, ids=[backend.rank + 4, backend.rank + 5])
        return metric.compute()

    named = "sample 5 was added with one value on rank 0 and another on rank 1; 2 samples have"
    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, CoverageError)
        assert f"{named} several values (5, 6)" in str(outcome)


def test_arrays_that_are_rounded_otherwise_and_samples_without_rows_are_no_conflict() -> None:
    def rank(backend: ThreadsDist) -> Any:
        rows = Words(dist_backend=backend)
        rows.add(np.ones((2, 3)) + 1e-7 * backend.rank, ids=[0, 1])
        matrix = ConfusionMatrix(2, dist_backend=backend)
        labels = np.zeros(backend.rank, int)  # sample 0 has no row, and rank 0 has nothing else
        matrix.add(
            labels, labels, ids=SampleRows([0, 1][: backend.rank + 1], [0, 1][: backend.rank + 1])
        )
        return np.array(rows.compute(2)).tolist(), matrix.compute(2)["matrix"].tolist()

    assert values(run_ranks(2, rank)) == [(np.ones((2, 3)).tolist(), [[1, 0], [0, 0]])] * 2


@pytest.mark.parametrize("make", [Squares, Words])
def test_memory_that_a_caller_reuses_does_not_change_what_was_added(make: Any) -> None:
    metric, batch = make(dist_backend="non_dist"), np.zeros((2, 1))
    for number in range(3):
        batch[:] = number
        metric.add(batch)
    assert metric.compute(3) in (([[1]], 3), [[0.0], [0.0], [1.0]])


def test_values_that_are_equal_are_no_conflict() -> None:
    def rank(backend: ThreadsDist) -> Any:
        group = MetricGroup({"mean": Mean(), "rows": Words()}, backend)
        sign = 1 if backend.rank else -1
        group.add(np.array([0.0 * sign, 5.0]), ids=[0, 1])
        with np.errstate(invalid="ignore"):
            found = Mean(dist_backend=backend)
            found.add(np.array([np.copysign(np.nan, sign)]), ids=[0])
        return group.compute(2)["mean"]["mean"], math.isnan(found.compute(1)["mean"])

    assert values(run_ranks(2, rank)) == [(2.5, True)] * 2


BAD_IDS: list[tuple[Any, str]] = [
    ([0.0, 1.0], "ids must be integers from 0 up, not of float64"),
    ([True, False], "ids must be integers from 0 up, not of bool"),
    (["a", "b"], "ids must be integers from 0 up: .*real numbers"),
    ([None, 1], "ids must be integers from 0 up"),
    ([[1], [1, 2]], "ids must be integers from 0 up"),
    ([0, -1], r"ids must be integers from 0 to 2\*\*63-1, but one is -1"),
    (np.array([0, 1 << 63], np.uint64), r"but one is 9223372036854775808"),
    ([0], "ids are those of 1 rows, but the batch has 2; give one for each row, or SampleRows"),
    (3, r"ids have shape \(\)"),
    ([[0], [1]], r"ids have shape \(2, 1\)"),
    (SampleRows([0], 1), "ids are those of 1 rows, but the batch has 2"),
    (SampleRows([0, 1], [3, -1]), r"SampleRows.rows must be integers.*one is -1"),
    (SampleRows([0, 1], [2, 0, 0]), r"ids have shape \(2,\), with rows of shape \(3,\)"),
    (SampleRows(0, 2), r"ids have shape \(\)"),
    (SampleRows([0], 2.0), "SampleRows.rows must be integers from 0 up, not of float64"),
]


@pytest.mark.parametrize(("ids", "message"), BAD_IDS, ids=[str(each) for each, _ in BAD_IDS])
def test_ids_that_can_not_be_are_refused_and_nothing_is_added(ids: Any, message: str) -> None:
    for metric in (Mean(), Words()):
        metric.dist_backend = "non_dist"
        metric.add(np.array([1.0]), ids=[0])
        with pytest.raises(UsageError, match=message):
            metric.add(np.array([5.0, 7.0]), ids=ids)
        metric.add(np.array([3.0]), ids=[1])
        assert metric.compute(2) in ({"mean": 2.0}, [1.0, 3.0])


@pytest.mark.parametrize("make", [Mean, Words])
def test_ids_for_some_batches_only_are_refused(make: Any) -> None:
    with_ids, without = make(), make()
    with_ids.add(np.ones(2), ids=[0, 1])
    with_ids.add(np.ones(0))  # an empty batch has nothing to number
    with pytest.raises(UsageError, match="this batch has no ids, but earlier ones had"):
        with_ids.add(np.ones(1))
    without.add(np.ones(2))
    with pytest.raises(UsageError, match="this batch has ids, but earlier ones had none"):
        without.add(np.ones(1), ids=[0])


@pytest.mark.parametrize("make", [Mean, Words])
def test_ids_on_some_ranks_only_are_an_error_on_every_rank(make: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = make(dist_backend=backend)
        if backend.rank:
            metric.add([1.0], ids=None if backend.rank % 2 else [0])
        return metric.compute()

    for outcome in run_ranks(5, rank):
        assert isinstance(outcome, UsageError)
        assert "rank 2 added samples with ids and rank 1 without" in str(outcome)


def test_entries_that_were_appended_without_their_ids_are_an_error() -> None:
    metric = Words(dist_backend="non_dist")
    metric.add(["a"], ids=[0])
    metric._results.append("b")
    with pytest.raises(RankError, match="rank 0 has 2 entries, but ids for 1"):
        metric.compute()


def test_a_group_refuses_ids_that_one_of_its_metrics_does_not_take() -> None:
    class Plain(BaseMetric):
        def add(self, values: Any) -> None:
            self._results.extend(values)

        def compute_metric(self, results: list[Any]) -> Any:
            return results

    group = MetricGroup({"mean": Mean(), "plain": Plain()}, "non_dist")
    with pytest.raises(UsageError, match=r"the metric 'plain' takes no ids; give Plain\.add a"):
        group.add([1.0], ids=[0])
    group.add([2.0])
    assert group.compute() == {"mean": {"mean": 2.0}, "plain": [2.0]}


@given(st.integers(1, 30), st.integers(1, 4))
def test_samples_that_were_added_once_need_one_small_collective(size: int, world: int) -> None:
    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        group = MetricGroup({"a": Mean(), "b": Mean()}, counting)
        ids = np.random.default_rng(0).permutation(size)[backend.rank :: world]
        group.add(ids, ids=ids)
        return group.compute(size)["b"]["mean"], counting.sent

    expected = (size - 1) / 2, [frames.BLOCK_BYTES]
    assert values(run_ranks(world, rank)) == [expected] * world


def test_of_samples_that_were_added_once_no_value_travels() -> None:
    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        metric = Mean(dist_backend=counting)
        ids = np.append(np.arange(5000)[backend.rank :: 2], 0)
        metric.add(ids, ids=ids)
        return metric.compute(5000)["mean"], counting.sent[-1]

    assert values(run_ranks(2, rank)) == [(2499.5, frames.BLOCK_BYTES)] * 2


def test_ids_may_be_reused_reset_and_taken_from_a_call() -> None:
    mean = Mean(dist_backend="non_dist")
    ids = np.array([0, 1])
    mean.add([1.0, 3.0], ids=ids)
    ids[:] = 7
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
    class Numbered(Later):
        def add(self, samples: Any, ids: Any = None) -> None:
            rows: npt.NDArray[Any] = np.asarray(samples, dtype=np.int64)
            self._append_later(len(rows), lambda: rows, ids)

    metric = Numbered(dist_backend="non_dist")
    for batch in batches:
        metric.add(batch, ids=batch)
    distinct = {each for batch in batches for each in batch}
    if distinct:
        assert metric.compute() == (len(distinct), sum(distinct))


def test_a_metric_that_can_not_sum_without_repeats_is_an_error_on_every_rank() -> None:
    class Failing(Total):
        def add(self, samples: Any, ids: Any = None) -> None:
            self._append(np.asarray(samples), ids)

        def sums_of(self, column: npt.NDArray[Any]) -> Any:
            if column.tolist() == [7]:
                raise ArithmeticError("not seven alone")
            return super().sums_of(column)

    def rank(backend: ThreadsDist) -> Any:
        metric = Failing(dist_backend=backend)
        metric.add([1, 7, 2], ids=[1 + 3 * backend.rank, 7, 2 + 3 * backend.rank])
        return metric.compute()

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, RankError)
        assert "rank 1 could not sum up Failing: ArithmeticError: not seven" in str(outcome)

"""Samples of every kind are evaluated once each, and a rank reads only its own."""

import re
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval import Leases, RankError, UsageError, evaluate
from disteval.metrics import Accuracy, BaseMetric, Mean
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import assert_each_raised, run_ranks, same_group, values
from suites.properties.cases import Entries


class Recorder:
    """Indexable samples that record which of them were read."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples, self.read = samples, list[int]()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.samples[index]


def numbers(size: int) -> dict[str, Any]:
    """Return the same samples in each form: x from 0 up, and the label 3x."""
    x = np.arange(size)
    return {
        "tuple of columns": (x, 3 * x),
        "dict of columns": {"x": x, "label": 3 * x},
        "list of tuples": [(i, 3 * i) for i in range(size)],
        "list of dicts": [{"x": i, "label": 3 * i} for i in range(size)],
    }


def twice(batch: Any) -> Any:
    return 2 * (batch["x"] if isinstance(batch, dict) else batch)


def test_a_rank_reads_its_own_samples_after_some_that_every_rank_reads() -> None:
    recorders = [Recorder(numbers(100)["list of dicts"]) for _ in range(3)]

    def rank(backend: ThreadsDist) -> Any:
        return evaluate(twice, recorders[backend.rank], {}, backend, 2, even_calls=False)

    values(run_ranks(3, rank))
    first = recorders[0].read[:32]
    assert len(set(first)) == 32
    for number, recorder in enumerate(recorders):
        own = [i for i in range(100) if i // 2 % 3 == number]
        assert recorder.read[:32] == first
        own[2:2] = own[:2] * 2  # its first samples are read twice more
        assert set(recorder.read[32 : -len(own)]) <= set(first)
        assert recorder.read[-len(own) :] == own


def test_many_samples_are_fetched_at_once_where_the_data_set_can() -> None:
    class Fetching(Recorder):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self.samples[i] for i in indices]

    data = Fetching(numbers(5)["list of dicts"])
    found = evaluate(twice, data, {"entries": Entries()}, "non_dist", 2)
    assert len(found.metrics["entries"]) == 5
    assert data.read == []


def test_an_update_is_a_function_or_one_for_each_metric() -> None:
    data = numbers(4)["dict of columns"]
    both = {"a": Mean(), "b": Mean()}
    one = evaluate(twice, data, both, "non_dist", 3, update=lambda out, batch: (out + batch["x"],))
    assert one.metrics == {"a": {"mean": 4.5}, "b": {"mean": 4.5}}
    each = evaluate(
        twice, data, both, "non_dist", 3, update={"b": lambda out, batch: {"values": batch["x"]}}
    )
    assert each.metrics == {"a": {"mean": 3.0}, "b": {"mean": 1.5}}


def test_an_update_may_be_an_object_that_has_no_hash() -> None:
    class Add(list[int]):
        def __call__(self, outputs: Any, batch: Any) -> Any:
            return (outputs,)

    data = numbers(4)["dict of columns"]
    found = evaluate(twice, data, {"a": Mean(), "b": Mean()}, "non_dist", 3, update=Add())
    assert found.metrics == {"a": {"mean": 3.0}, "b": {"mean": 3.0}}


def test_a_data_set_that_grows_is_an_error_on_all_ranks() -> None:
    def rank(backend: ThreadsDist) -> Any:
        data = numbers(9)["list of tuples"]

        def predict(x: Any) -> Any:
            if backend.rank == 1 and len(data) == 9:
                data.append((9, 9))
            return x

        return evaluate(predict, data, {}, backend, 4)

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, RankError)
        assert re.search(r"\b10\b.*\b9\b", str(outcome))


def test_a_failure_is_told_also_where_the_collective_fails() -> None:
    class Broken(ThreadsDist):
        calls = 0

        def all_gather_object(self, obj: Any) -> list[Any]:
            self.calls += 1
            if self.calls > 2:
                raise ConnectionError("the other rank is gone")
            return super().all_gather_object(obj)

    def rank(backend: ThreadsDist) -> Any:
        def predict(x: Any) -> Any:
            if backend.rank == 0:
                raise OSError("mine")
            return x

        return evaluate(predict, np.zeros((4, 1)), {}, same_group(backend, Broken), 2)

    first, second = run_ranks(2, rank)
    assert isinstance(first, RankError) and isinstance(first.__cause__, OSError)
    assert "samples 0, 1" in str(first)
    assert isinstance(second, ConnectionError)


class Plain(BaseMetric):
    """A metric of a user's own that takes no ids."""

    def add(self, outputs: Any, labels: Any) -> None:
        self._results.extend(list(labels))

    def compute_metric(self, results: list[Any]) -> list[Any]:
        return results


class Appending(Plain):
    """One that appends in the way of the base class, in two parts."""

    def add(self, outputs: Any, labels: Any) -> None:
        self._extend(labels[:1])
        self._extend(labels[1:])


class Pairs(Plain):
    """One with an entry for each batch, which has no place in the order of the data set."""

    def add(self, outputs: Any, labels: Any) -> None:
        self._results.append(labels)


@pytest.mark.parametrize("leases", [None, Leases()])
@pytest.mark.parametrize("kind", [Plain, Appending])
@pytest.mark.parametrize("kept", ["unzip", "cat"])
def test_a_metric_without_ids_has_its_entries_in_the_order_of_the_data_set(
    kind: Any, leases: Any, kept: Any
) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metrics = {"plain": kind(dist_collect_mode=kept)}
        data = numbers(7)["list of tuples"]
        return evaluate(twice, data, metrics, backend, 2, leases=leases).metrics["plain"]

    assert values(run_ranks(3, rank)) == [[3 * i for i in range(7)]] * 3


def test_entries_without_a_place_in_the_order_are_refused_unless_they_need_none() -> None:
    data = numbers(4)["list of tuples"]
    with pytest.raises(RankError, match=r"\b2\b.*\b1\b.*uses_ids"):
        evaluate(twice, data, {"pairs": Pairs()}, "non_dist", 2)
    metric = Pairs()
    metric.uses_ids = False
    found = evaluate(twice, data, {"pairs": metric}, "non_dist", 2)
    assert np.array(found.metrics["pairs"]).tolist() == [[0, 3], [6, 9]]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([{"x": 1, "z": 2}], r"\['x', 'z'\]"),
        ([{"x": 1, "y": 2, "label": 3}], r"'x', 'y', 'label'"),
        (np.zeros((1, 3)), "ndarray"),
    ],
)
def test_a_batch_whose_labels_are_not_known_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(RankError, match=message):
        evaluate(lambda b: [0], batch, {"a": Accuracy()}, "non_dist", 1)


class Series:
    """A column of a table, whose index is not the number of a row."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __getitem__(self, index: Any) -> Any:
        raise KeyError(index)

    def to_numpy(self) -> Any:
        return self._values


class OnDisk:
    """An array that is read row by row, as those of h5py."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)
        self.dtype, self.shape = self._values.dtype, self._values.shape

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        if not isinstance(index, int):
            raise TypeError("indices must be in rising order")
        return self._values[index]

    __module__ = "h5py._hl.dataset"


def test_columns_of_tables_and_of_files_are_read_by_the_numbers_of_rows() -> None:
    data = {"x": OnDisk(np.arange(7)), "label": Series(3 * np.arange(7))}
    found = evaluate(twice, data, {"e": Entries()}, "non_dist", 3)
    assert found.metrics["e"] == [(2 * i, 3 * i) for i in range(7)]


class Sparse(OnDisk):
    """Rows of a sparse matrix, whose number is in its shape alone, as those of SciPy."""

    __module__ = "scipy.sparse"

    def __len__(self) -> int:
        raise TypeError("sparse array length is ambiguous; use getnnz() or shape[0]")

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]


def test_rows_of_a_sparse_matrix_are_samples() -> None:
    for samples in (Sparse(np.arange(7)), {"x": Sparse(np.arange(7))}):
        found = evaluate(twice, samples, {"mean": Mean()}, "non_dist", 3)
        assert found.metrics["mean"]["mean"] == 6


class Drawn:
    """An object with random numbers and another address in each process."""

    def __init__(self, seed: int) -> None:
        self.drawn = object(), np.random.default_rng(seed).random()


def test_objects_are_compared_by_what_they_hold() -> None:
    def rank(backend: ThreadsDist, *, differ: bool) -> Any:
        def seed(number: int) -> int:
            return number if number != 4 or not differ else backend.rank

        rows = np.array([[Drawn(seed(i)), Drawn(i)] for i in range(6)], dtype=object)
        samples = rows if backend.world_size == 2 else list(rows)
        return evaluate(len_of_each, samples, {"mean": Mean()}, backend, 2)

    for world in (2, 3):
        for found in values(run_ranks(world, partial(rank, differ=False))):
            assert (found.metrics["mean"]["mean"], found.coverage) == (2.0, "exact")
        assert_each_raised(run_ranks(world, partial(rank, differ=True)), UsageError, "sample 4 ")


def len_of_each(batch: Any) -> Any:
    return np.array([len(row) for row in batch], dtype=float)


class Table(Recorder):
    """A table with columns, which it returns by their names."""

    columns = ("x", "label", "images", "labels")
    images = labels = np.zeros(3)

    def to_numpy(self) -> Any:
        return np.zeros((3, 4))


def test_a_table_is_refused_for_its_columns() -> None:
    with pytest.raises(UsageError, match=r"\bTable\b"):
        evaluate(twice, Table([]), {}, "non_dist", 3)


class Made:
    """Samples that are made when they are read, so that they take no memory."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return {"x": index, "y": index % 7, "weight": 0.5}


def peak_of(size: int) -> int:
    """Return the most bytes that an evaluation holds at once."""
    metrics = {"mean": Mean(), "accuracy": Accuracy(counts=True)}
    updates = {"accuracy": lambda outputs, batch: (np.eye(7)[batch["y"]], batch["y"])}
    tracemalloc.start()
    try:
        found = evaluate(twice, Made(size), metrics, "non_dist", 100, update=updates)
        assert found.metrics["accuracy"]["correct_top1"] == size
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_samples() -> None:
    peak_of(10_000)  # imports and caches
    # Both have as many ids that are not compressed yet, and compressed some before.
    assert peak_of(20_001 + 4 * 8192) - peak_of(20_001) < 20_000


def test_a_metric_begins_anew_where_it_is_evaluated_and_afterwards() -> None:
    mean = Mean(dist_backend="non_dist")
    mean.add([99.0])
    for _ in range(2):
        found = evaluate(twice, Made(9), {"mean": mean}, "non_dist", 4)
        assert found.metrics["mean"] == {"mean": 8.0}
    mean.add(np.arange(9))
    assert mean.compute() == {"mean": 4.0}
    assert mean.compute(size=3) == {"mean": 1.0}

"""Metrics of torchmetrics have the same result over a backend as in one process."""

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from disteval import CoverageError, Leases, ShardPlan, UsageError, evaluate
from disteval.metrics import BaseMetric, SampleRows, from_torchmetrics
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import Counting, run_ranks, values

pytestmark = needs("torch", "torchmetrics")

CLASSES = 3


def numbers(result: Any) -> Any:
    """Return tensors as nested lists, which can be compared."""
    if isinstance(result, dict):
        return {key: numbers(value) for key, value in result.items()}
    return result.tolist()


@pytest.mark.filterwarnings("ignore:.*samples in target")
@pytest.mark.filterwarnings("ignore:.* will save all targets and predictions")
@pytest.mark.parametrize("leases", [None, Leases()])
def test_an_evaluation_has_the_result_of_one_process(leases: Any, tm: Any) -> None:
    torch, kinds = framework("torch"), tm.classification
    random = np.random.default_rng(0)
    scores = (random.integers(0, 5, (24, CLASSES)) / 4).astype(np.float32)
    classes = scores, random.integers(0, CLASSES, 24)
    pair = scores[:, 0], scores[:, 1]
    recall = kinds.MulticlassRecall(CLASSES, average="micro")
    cases: list[tuple[Any, tuple[Any, ...]]] = [
        (kinds.MulticlassAccuracy(CLASSES, average="macro"), classes),  # sums
        (kinds.MulticlassAUROC(CLASSES), classes),  # lists
        (tm.wrappers.ClasswiseWrapper(kinds.MulticlassF1Score(CLASSES, average=None)), classes),
        (kinds.MulticlassPrecision(CLASSES) + recall, classes),  # a sum of metrics
        (tm.regression.PearsonCorrCoef(), pair),  # states side by side
        (tm.regression.SpearmanCorrCoef(), pair),  # lists
        (tm.regression.MeanSquaredError(), pair),  # sums of floats
    ]
    for made, arrays in cases:
        made.update(*map(torch.tensor, arrays))
        expected = numbers(made.compute())

        def rank(backend: ThreadsDist, arrays: Any = arrays, made: Any = made) -> Any:
            metrics = {"m": from_torchmetrics(made)}
            found = evaluate(lambda x: x, arrays, metrics, backend, 4, leases=leases)
            return numbers(found.metrics["m"])

        for world in (1, 3):
            for found in values(run_ranks(world, rank)):
                if arrays is classes:
                    assert found == expected
                else:
                    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("world", [2, 5])
def test_a_rank_without_samples_does_not_take_part(
    world: int, tm: Any, of_one_state: Callable[..., Any]
) -> None:
    averaged = of_one_state(framework("torch").tensor(0.0), "mean", lambda _, values: values[-1])

    def rank(backend: ThreadsDist) -> Any:
        found = []
        for made in (tm.MaxMetric(), tm.MinMetric(), averaged):
            metric = from_torchmetrics(made, backend)
            if backend.rank < 2:
                metric.add([(-1.0, -4.0)[backend.rank]])
            found.append(metric.compute(2).item())
            assert metric.compute().item() == found[-1]  # it was not left synchronised
        return found

    assert values(run_ranks(world, rank)) == [[-1.0, -4.0, -2.5]] * world


def test_computing_leaves_each_rank_its_own_samples(tm: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        sums, lists = (from_torchmetrics(m, backend) for m in (tm.SumMetric(), tm.CatMetric()))
        found = []
        for _ in range(3):
            for metric in (sums, lists):
                metric.add([1.0])
                found.append(numbers(metric.compute()))
        return found

    expected = [3.0, [1.0] * 3, 6.0, [1.0] * 6, 9.0, [1.0] * 9]
    assert values(run_ranks(3, rank)) == [expected] * 3


def test_all_states_travel_in_one_collective(tm: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        counting = Counting(backend)
        metric = from_torchmetrics(tm.regression.PearsonCorrCoef(), counting)
        metric.add([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
        return metric.compute(3).item(), len(counting.sent)

    # The number of samples, and the states.
    assert values(run_ranks(1, rank)) == [(pytest.approx(0.98198, rel=1e-4), 2)]


def test_torchmetrics_does_not_synchronise_on_its_own(tm: Any) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("torchmetrics gathered the states again")

    metric = from_torchmetrics(
        tm.MeanMetric(distributed_available_fn=lambda: True, dist_sync_fn=never)
    )
    metric.add([1.0, 2.0])
    assert metric.compute().item() == 1.5


def test_a_reset_forgets_a_call_forgets_nothing_and_the_given_metric_stays(tm: Any) -> None:
    given_metric = tm.SumMetric()
    given_metric.update(100.0)
    metric = from_torchmetrics(given_metric)
    assert isinstance(metric, BaseMetric)
    metric.add([1.0, 2.0])
    assert metric([5.0]).item() == 5.0
    assert metric.compute().item() == 3.0
    metric.add([4.0])
    assert metric.compute(size=3).item() == 7.0
    metric.reset()
    metric.add([8.0])
    assert metric.compute().item() == 8.0
    assert given_metric.compute().item() == 100.0


def test_what_is_added_may_be_changed_afterwards(tm: Any) -> None:
    torch = framework("torch")
    metric = from_torchmetrics(tm.CatMetric())
    for batch in (torch.tensor([1.0]), np.array([1.0], dtype=np.float32)):
        metric.add(batch)
        batch[:] = 9.0
    assert metric.compute().tolist() == [1.0, 1.0]


def test_lists_of_texts_and_dicts_are_passed_on(tm: Any) -> None:
    metric = from_torchmetrics(tm.text.WordErrorRate())
    metric.add(["a b", "c d"], ["a b", "c e"])
    assert metric.compute(size=2).item() == 0.25
    tasks = {"task": tm.classification.BinaryAccuracy()}
    wrapped = from_torchmetrics(tm.wrappers.MultitaskWrapper(tasks))
    wrapped.add({"task": np.array([0.9, 0.1, 0.8])}, {"task": [1, 0, 0]})
    assert numbers(wrapped.compute(size=3)) == {"task": pytest.approx(2 / 3)}


def test_an_update_without_a_batch_is_one_sample_and_a_lone_state_stays_as_it_is(
    of_one_state: Callable[..., Any],
) -> None:
    calls = of_one_state(framework("torch").zeros(2), None, lambda calls: calls + 1)
    metric = from_torchmetrics(calls)
    metric.add()
    metric.add()
    assert numbers(metric.compute(size=2)) == [2.0, 2.0]


def test_lists_stay_lists_as_in_one_process(tm: Any) -> None:
    class Lists(tm.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, reduction in (("joined", "cat"), ("listed", None), ("empty", "cat")):
                self.add_state(name, [], dist_reduce_fx=reduction)

        def update(self, values: Any) -> None:
            self.joined.append(values)
            self.listed.append(values)

        def compute(self) -> Any:
            return {"joined": self.joined, "listed": self.listed, "empty": self.empty}

    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(Lists(), backend)
        metric.add([backend.rank, 9])
        found = metric.compute(size=4)
        listed = [numbers(values) for values in found["listed"]]
        return [numbers(values) for values in found["joined"]], listed, found["empty"]

    assert values(run_ranks(2, rank)) == [([[0, 1, 9, 9]], [[0, 1, 9, 9]], [])] * 2


@pytest.fixture
def listing(tm: Any) -> Callable[[str], Any]:
    """Makes metrics whose result is the order of their samples, kept in two ways."""

    class Listing(tm.Metric):  # type: ignore[misc]
        def __init__(self, kept: str) -> None:
            super().__init__()
            self.kept = kept
            for name, reduction in (("seen", None), ("twice", "cat"), ("unused", None)):
                self.add_state(name, [], dist_reduce_fx=reduction)

        def update(self, values: Any) -> None:
            if self.kept == "an entry for each sample":  # as MeanAveragePrecision does
                self.seen.extend(values[:, None])
            else:
                self.seen.append(values)
            self.twice.append(values.repeat_interleave(2))

        def compute(self) -> Any:
            torch = framework("torch")
            return [torch.cat(self.seen).tolist(), torch.cat(self.twice).tolist()[::2]]

    return Listing


@pytest.mark.parametrize("kept", ["an entry for each sample", "a row for each sample"])
def test_entries_come_in_the_order_of_ids_or_of_shards(
    kept: str, listing: Callable[[str], Any]
) -> None:
    def rank(backend: ThreadsDist, mode: Any, with_ids: bool) -> Any:
        collect: Any = {"strided": "unzip", "contiguous": "cat"}[mode]
        metric = from_torchmetrics(listing(kept), backend, collect)
        mine = np.array(ShardPlan(11, backend.world_size, backend.rank, mode, pad=False).indices)
        for batch in np.array_split(mine[::-1] if with_ids else mine, 2):
            metric.add(batch, ids=batch if with_ids else None)
        return metric.compute(11)[0]

    for world in (1, 2, 3):
        for mode, with_ids in product(("strided", "contiguous"), (True, False)):
            found = run_ranks(world, partial(rank, mode=mode, with_ids=with_ids))
            assert values(found) == [list(range(11))] * world


def test_ids_prove_that_each_sample_was_added_once_or_name_the_others(tm: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(tm.SumMetric(), backend)
        found = []
        # Samples 0 to 3 once; then sample 3 a second time, instead of sample 4.
        for ids in ([backend.rank, backend.rank + 2], [3] if backend.rank else []):
            metric.add(np.array(ids, dtype=np.float32), ids=ids)
            for size in (None, 4, 5):
                try:
                    found.append(metric.compute(size).item())
                except CoverageError as error:
                    found.append(re.split("[;.,] ", str(error))[1])
        metric.reset()
        metric.add([1.0, 2.0], ids=SampleRows([backend.rank], 2))
        return [*found, metric.compute(2).item()]

    once, twice = "1 missing (4)", "1 counted more than once (3)"
    expected = [6.0, 6.0, once, twice, twice, once, 6.0]
    assert values(run_ranks(2, rank)) == [expected] * 2


INPUTS: list[tuple[Any, int, Any]] = [
    ([1, 2], 2, "int64"), ((0.5, 1.0), 2, "float64"), ([[1], [2]], 2, "int64"),
    ([True], 1, "bool"), ((np.float32(1), np.float32(2)), 2, "float32"),
    (np.float16(1), 1, "float16"),
    (np.array([1, 2], np.uint8), 2, "uint8"), (np.array([1, 2], np.uint16), 2, "int64"),
    (np.array([[1]], np.uint32), 1, "int64"), (np.array([1], np.int16)[::-1], 1, "int16"),
    (["a", "b", "c"], 3, None), ("a text", 1, None), (5, 1, None), (None, 1, None),
    ({"boxes": [1, 2], "scores": [1, 2, 3]}, 2, None), (({"boxes": 1},), 1, None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "samples", "dtype"), INPUTS)
def test_numbers_become_tensors_at_any_depth_and_samples_are_counted_by_the_first_axis(
    value: Any, samples: int, dtype: str | None, of_one_state: Callable[..., Any]
) -> None:
    torch = framework("torch")
    seen: list[Any] = []

    def see(count: Any, value: Any, nested: Any) -> Any:
        seen.extend([value, nested["in"]["value"], nested["text"]])
        return count + 1

    metric = from_torchmetrics(of_one_state(torch.tensor(0), "sum", see))
    metric.add(value, {"in": {"value": value}, "text": "text"})
    assert metric.compute(samples).item() == 1
    assert seen[2] == "text"
    for found in seen[:2]:
        if dtype is None:
            assert type(found) is type(value)
        else:
            assert found.dtype == getattr(torch, dtype)
            assert found.tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize("value", [np.array([1, 2**63], np.uint64), [2**63], np.uint64(2**64 - 1)])
def test_a_number_that_int64_does_not_hold_is_refused(value: Any, tm: Any) -> None:
    with pytest.raises(UsageError, match=str(np.max(value))):
        from_torchmetrics(tm.SumMetric()).add(value)


def test_a_state_arrives_as_it_was_in_memory_of_its_own(of_one_state: Callable[..., Any]) -> None:
    torch = framework("torch")
    states = [
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5, -2.0], dtype=torch.float16),
        torch.tensor([True, False]),
        torch.tensor(7, dtype=torch.uint8),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.ones(2, requires_grad=True),
    ]

    def rank(backend: ThreadsDist) -> Any:
        held = of_one_state([], None, lambda held, _: held + states)
        metric = from_torchmetrics(held, backend)
        if backend.rank:
            metric.add([1.0])
        found = metric.compute()
        for one, other in zip(found, metric.compute(), strict=True):
            assert one.data_ptr() != other.data_ptr() or not one.numel()
        return found

    for found in values(run_ranks(2, rank)):
        for one, other in zip(found, states, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)

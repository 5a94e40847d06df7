"""Metrics of torchmetrics have the same result over a backend as in one process."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial, reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
from disteval import CoverageError, ShardPlan, evaluate
from disteval.data.base import ArrayDataset
from disteval.metrics import Accuracy, BaseMetric, MetricGroup, SampleRows, from_torchmetrics
from disteval.metrics.totals import add_totals, compute_totals, take_totals
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values

CLASSES = 3


def _classification(tm: Any) -> dict[str, Any]:
    return {
        "sums": tm.classification.MulticlassAccuracy(CLASSES, average="macro"),
        "lists": tm.classification.MulticlassAUROC(CLASSES),
        "a wrapper": tm.wrappers.ClasswiseWrapper(
            tm.classification.MulticlassF1Score(CLASSES, average=None)
        ),
        "a sum of metrics": tm.classification.MulticlassPrecision(CLASSES)
        + tm.classification.MulticlassRecall(CLASSES, average="micro"),
    }


def _regression(tm: Any) -> dict[str, Any]:
    return {
        "states side by side": tm.regression.PearsonCorrCoef(),
        "ranks of all samples": tm.regression.SpearmanCorrCoef(),
        "sums of floats": tm.regression.MeanSquaredError(),
    }


def _aggregation(tm: Any) -> dict[str, Any]:
    class Averaged(tm.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.add_state("last", framework("torch").tensor(0.0), "mean")

        def update(self, values: Any) -> None:
            self.last = values[-1]

        def compute(self) -> Any:
            return self.last

    return {"largest": tm.MaxMetric(), "smallest": tm.MinMetric(), "averaged": Averaged()}


def numbers(result: Any) -> Any:
    """Return tensors as nested lists, which can be compared."""
    if isinstance(result, dict):
        return {key: numbers(value) for key, value in result.items()}
    return result.tolist()


def distributed(
    make: Callable[[], Any], batches: tuple[np.ndarray, ...], world: int, mode: Any, batch: int
) -> list[Any]:
    """Compute on shards of different sizes without padding, some of which are empty."""
    size = len(batches[0])

    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(make(), backend)
        indices = ShardPlan(size, world, backend.rank, mode, pad=False).indices
        for at in range(0, len(indices), batch):
            metric.add(*(array[indices[at : at + batch]] for array in batches))
        first = numbers(metric.compute(size))
        assert numbers(metric.compute()) == first  # it was not left synchronised
        return first

    return values(run_ranks(world, rank))


@st.composite
def scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    size = draw(st.integers(1, 9))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    scores = random.integers(0, 5, (size, CLASSES)) / np.float32(4)
    return scores, random.integers(0, CLASSES, size)


modes = st.sampled_from(["strided", "contiguous"])


@needs("torch", "torchmetrics")
@pytest.mark.filterwarnings("ignore:.*samples in target")
@pytest.mark.parametrize("name", ["sums", "lists", "a wrapper", "a sum of metrics"])
def test_classification_is_the_same_in_any_world(name: str, tm: Any) -> None:
    torch = framework("torch")

    @given(scored(), st.integers(1, 5), modes, st.integers(1, 4))
    @settings(max_examples=25)
    def check(drawn: Any, world: int, mode: str, batch: int) -> None:
        scores, labels = drawn
        alone = _classification(tm)[name]
        alone.update(torch.tensor(scores), torch.tensor(labels))
        found = distributed(lambda: _classification(tm)[name], drawn, world, mode, batch)
        assert found == [numbers(alone.compute())] * world

    check()


@needs("torch", "torchmetrics")
@pytest.mark.filterwarnings("ignore:.* will save all targets and predictions")
@pytest.mark.parametrize("name", ["states side by side", "ranks of all samples", "sums of floats"])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_regression_is_the_same_in_any_world_but_for_rounding(
    name: str, world: int, tm: Any
) -> None:
    torch = framework("torch")
    random = np.random.default_rng(0)
    # With two samples a rank at least: a variance of one sample is none, in torchmetrics too.
    pair = random.normal(size=(2, 11)).astype(np.float32)
    alone = _regression(tm)[name]
    alone.update(torch.tensor(pair[0]), torch.tensor(pair[1]))
    found = distributed(lambda: _regression(tm)[name], (pair[0], pair[1]), world, "strided", 3)
    assert found == [pytest.approx(numbers(alone.compute()), rel=1e-5)] * world
    assert len(set(found)) == 1


@needs("torch", "torchmetrics")
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize(
    ("name", "expected"), [("largest", -1.0), ("smallest", -4.0), ("averaged", -2.5)]
)
def test_a_rank_without_samples_does_not_take_part(
    name: str, expected: float, world: int, tm: Any
) -> None:
    samples = (np.array([-1.0, -4.0], dtype=np.float32),)
    found = distributed(lambda: _aggregation(tm)[name], samples, world, "strided", 1)
    assert found == [expected] * world


@needs("torch", "torchmetrics")
@pytest.mark.filterwarnings("ignore:.*samples in target")
@pytest.mark.filterwarnings("ignore:.* will save all targets and predictions")
@pytest.mark.parametrize("seed", range(3))
def test_totals_of_leases_are_those_of_one_rank_in_any_order(seed: int, tm: Any) -> None:
    torch = framework("torch")
    random = np.random.default_rng(seed)
    scores = (random.integers(0, 5, (12, CLASSES)) / 4).astype(np.float32)
    labels = random.integers(0, CLASSES, 12)
    parts = np.split(np.arange(12), sorted(random.choice(np.arange(2, 11, 2), 3, replace=False)))
    cases: dict[str, tuple[Any, ...]] = dict.fromkeys(_classification(tm), (scores, labels))
    cases |= dict.fromkeys(_regression(tm), (scores[:, 0], scores[:, 1]))
    for name, arrays in cases.items():
        made = (_classification(tm) | _regression(tm))[name]
        metrics = {name: from_torchmetrics(made)}
        made.update(*map(torch.tensor, arrays))
        taken = []
        for place in random.permutation(len(parts)).tolist():
            metrics[name].add(*(array[parts[place]] for array in arrays))
            taken.append(pickle.loads(pickle.dumps(take_totals(metrics, place))))
        found = numbers(compute_totals(metrics, reduce(add_totals, taken))[name])
        expected = numbers(made.compute())
        assert found == (
            expected if name in _classification(tm) else pytest.approx(expected, rel=1e-5, abs=1e-6)
        )


@needs("torch", "torchmetrics")
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


@needs("torch", "torchmetrics")
def test_lists_arrive_rank_by_rank_with_their_dtypes(tm: Any) -> None:
    torch = framework("torch")

    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(tm.CatMetric().set_dtype(torch.bfloat16), backend)
        if backend.rank != 1:
            metric.add(torch.full((backend.rank + 1,), backend.rank, dtype=torch.bfloat16))
        return metric.compute()

    for found in values(run_ranks(3, rank)):
        assert found.dtype == torch.bfloat16
        assert found.tolist() == [0, 2, 2, 2]


class Counting(ThreadsDist):
    """A backend that counts its collectives."""

    calls = 0

    def all_gather_object(self, obj: Any) -> list[Any]:
        self.calls += 1
        return super().all_gather_object(obj)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self.calls += 1
        return super().broadcast_object(obj, src)


@needs("torch", "torchmetrics")
def test_all_states_travel_in_one_collective(tm: Any) -> None:
    backend = Counting()
    metric = from_torchmetrics(tm.regression.PearsonCorrCoef(), backend)
    metric.add([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
    assert metric.compute(3).item() == pytest.approx(0.98198, rel=1e-4)
    assert backend.calls == 1


@needs("torch", "torchmetrics")
def test_torchmetrics_does_not_synchronise_on_its_own(tm: Any) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("torchmetrics gathered the states again")

    metric = from_torchmetrics(
        tm.MeanMetric(distributed_available_fn=lambda: True, dist_sync_fn=never)
    )
    metric.add([1.0, 2.0])
    assert metric.compute().item() == 1.5


@needs("torch", "torchmetrics")
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


@needs("torch", "torchmetrics")
def test_what_is_added_may_be_changed_afterwards(tm: Any) -> None:
    torch = framework("torch")
    metric = from_torchmetrics(tm.CatMetric())
    for batch in (torch.tensor([1.0]), np.array([1.0], dtype=np.float32)):
        metric.add(batch)
        batch[:] = 9.0
    assert metric.compute().tolist() == [1.0, 1.0]


@needs("torch", "torchmetrics")
def test_lists_of_texts_and_dicts_are_passed_on(tm: Any) -> None:
    metric = from_torchmetrics(tm.text.WordErrorRate())
    metric.add(["a b", "c d"], ["a b", "c e"])
    assert metric.compute(size=2).item() == 0.25
    tasks = {"task": tm.classification.BinaryAccuracy()}
    wrapped = from_torchmetrics(tm.wrappers.MultitaskWrapper(tasks))
    wrapped.add({"task": np.array([0.9, 0.1, 0.8])}, {"task": [1, 0, 0]})
    assert numbers(wrapped.compute(size=3)) == {"task": pytest.approx(2 / 3)}


@needs("torch", "torchmetrics")
def test_in_an_evaluation_it_agrees_with_accuracy(tm: Any) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (23, 3, 4, 4), dtype=np.uint8)
    labels = random.integers(0, CLASSES, 23)
    dataset = ArrayDataset("noise", images, labels, ("a", "b", "c"))

    def rank(backend: ThreadsDist) -> Any:
        metrics = {
            "theirs": from_torchmetrics(
                tm.classification.MulticlassAccuracy(CLASSES, average="micro")
            ),
            "ours": Accuracy(),
        }
        found = evaluate(lambda b: b.mean(axis=(2, 3)), dataset, metrics, backend, batch_size=4)
        return found.metrics

    for world in (1, 3, 5):
        for found in values(run_ranks(world, rank)):
            assert found["theirs"].item() == pytest.approx(found["ours"]["top1"], rel=1e-6)
            assert found["theirs"] == values(run_ranks(1, rank))[0]["theirs"]


@needs("torch", "torchmetrics")
def test_an_update_without_a_batch_is_one_sample_and_a_lone_state_stays_as_it_is(tm: Any) -> None:
    class Calls(tm.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.add_state("calls", framework("torch").zeros(2), dist_reduce_fx=None)

        def update(self) -> None:
            self.calls += 1

        def compute(self) -> Any:
            return self.calls

    metric = from_torchmetrics(Calls())
    metric.add()
    metric.add()
    assert numbers(metric.compute(size=2)) == [2.0, 2.0]


@needs("torch", "torchmetrics")
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
    """Makes metrics whose result is the order of their samples, kept in three ways."""

    class Listing(tm.Metric):  # type: ignore[misc]
        def __init__(self, kept: str) -> None:
            super().__init__()
            self.kept = kept
            for name, reduction in (("seen", None), ("twice", "cat"), ("unused", None)):
                self.add_state(name, [], dist_reduce_fx=reduction)

        def update(self, values: Any) -> None:
            if self.kept == "an entry for each sample":  # as MeanAveragePrecision does
                self.seen.extend(values[:, None])
            elif self.kept == "a row for each sample":
                self.seen.append(values)
            else:
                self.seen.append(values[values % 5 > 0])
            self.twice.append(self.seen[-1] if len(self.kept) < 20 else values.repeat_interleave(2))

        def compute(self) -> Any:
            torch = framework("torch")
            return [torch.cat(self.seen).tolist(), torch.cat(self.twice).tolist()[::2]]

    return Listing


@pytest.mark.parametrize("schedule", ["static", "leases"])
@pytest.mark.parametrize(
    ("kept", "by_length"),
    [
        ("an entry for each sample", True),
        ("a row for each sample", True),
        ("some rows of a batch", False),
    ],
)
def test_entries_come_in_the_order_of_the_data_set_at_any_world_size(
    kept: str, by_length: bool, schedule: Any, listing: Callable[[str], Any]
) -> None:
    samples = np.arange(23)

    def rank(backend: ThreadsDist) -> Any:
        found = evaluate(
            lambda batch: batch,
            list(samples),
            {"order": from_torchmetrics(listing(kept))},
            backend,
            batch_size=4,
            schedule=schedule,
            mode="batches",
            collate=np.array,
            update=lambda outputs, batch: (outputs,),
            sort_by_length=by_length,
            length=(lambda sample: 1 + int(sample) * 7 % 11) if by_length else None,
        )
        return found.metrics["order"]

    expected = [each for each in samples.tolist() if by_length or each % 5]
    for world in (1, 2, 3):
        for seen, twice in values(run_ranks(world, rank)):
            assert seen == expected
            assert twice == (expected if by_length else samples.tolist())


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


@needs("torch", "torchmetrics")
def test_it_may_be_one_of_a_group(tm: Any) -> None:
    group = MetricGroup({"sum": from_torchmetrics(tm.SumMetric())})
    group.add([1.0, 2.0])
    assert group.compute(2)["sum"].item() == 3.0


@needs("torch", "torchmetrics")
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


@needs("torch", "torchmetrics")
def test_importing_it_imports_no_framework() -> None:
    code = (
        "import sys\n"
        "from disteval.metrics import from_torchmetrics\n"
        "try:\n    from_torchmetrics(1)\n"
        "except ValueError as error:\n    print(error)\n"
        "print([name for name in ('torch', 'torchmetrics', 'sklearn') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    message = "expected a torchmetrics.Metric, not a value of type int"
    assert done.stdout.splitlines() == [message, "[]"], done.stderr

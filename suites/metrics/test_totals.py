"""However samples are parted into leases, and in whatever order their totals are added."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import reduce
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.evaluation.updates import takes_ids
from disteval.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    BaseMetric,
    Bootstrap,
    ConfusionMatrix,
    Grouped,
    Mean,
    MetricGroup,
    Weighted,
)
from disteval.metrics.totals import add_totals, check_totals, compute_totals, take_totals
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.metrics.cases import CASES, SIZE, assert_same, classes, random, scores

GROUPS = np.array(["a", "b", "c"])[random.integers(0, 3, SIZE)]
WEIGHTS = random.integers(1, 9, SIZE) / 4


class Order(BaseMetric):
    """A metric that takes no ids, whose result is the order in which samples were added."""

    def add(self, values: Any) -> None:
        self._extend(np.asarray(values).tolist())

    def compute_metric(self, results: list[Any]) -> Any:
        return results


class Documents(Mean):
    """A mean over documents, of which each counts once although several samples belong to it."""

    uses_ids = True

    def add(self, values: Any, *, ids: Any = None) -> None:
        super().add(np.asarray(ids) // 2, ids=np.asarray(ids) // 2)


def wrapped(make: Callable[[], Any], kind: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    if kind == "weighted":
        return lambda: Weighted(make()), {"weights": WEIGHTS}
    if kind == "grouped":
        return lambda: Grouped(make()), {"groups": GROUPS}
    if kind == "bootstrap":
        return lambda: Bootstrap(make(), resamples=8), {}
    return make, {}


def all_cases() -> dict[str, tuple[Callable[[], BaseMetric], tuple[Any, ...], dict[str, Any]]]:
    found: dict[str, Any] = {
        "auroc": (AUROC, (scores[:, 0], classes > 1), {}),
        "average precision": (AveragePrecision, (scores[:, 0], classes > 1), {}),
        "order": (Order, (np.arange(SIZE),), {}),
        "documents": (Documents, (np.arange(SIZE),), {}),
    }
    for name, (make, args, named) in CASES.items():
        for kind in ("plain", "grouped", "bootstrap"):
            made, more = wrapped(make, kind)
            found[f"{name}, {kind}"] = (made, args, named | more)
    for name in ("accuracy", "mean", "perplexity"):
        made, more = wrapped(CASES[name][0], "weighted")
        found[f"{name}, weighted"] = (made, CASES[name][1], CASES[name][2] | more)
    return found


ALL = all_cases()


class Parts:
    """A metric of a case, to which ranges of samples are added."""

    def __init__(self, case: str) -> None:
        make, self._args, self._named = ALL[case]
        self.metrics = {"m": make()}
        self.group = MetricGroup(self.metrics, "non_dist")
        self.group.reset_to_sums()

    def add(self, *batches: range) -> None:
        for batch in batches:
            ids = np.arange(batch.start, batch.stop)
            named = {name: array[ids] for name, array in self._named.items()}
            if takes_ids(self.metrics["m"]):
                named["ids"] = ids
            with self.group.trusting_ids():
                self.metrics["m"].add(*(array[ids] for array in self._args), **named)


def batches_of(size: int) -> list[range]:
    return [range(at, min(at + size, SIZE)) for at in range(0, SIZE, size)]


@pytest.mark.parametrize("case", ALL)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_leases_in_any_order_give_the_bits_of_one_rank(case: str, data: st.DataObject) -> None:
    batches = batches_of(data.draw(st.integers(1, 9)))
    alone = Parts(case)
    alone.add(*batches)
    expected = alone.group.compute()
    cuts = data.draw(st.sets(st.integers(1, len(batches)), max_size=6))
    bounds = [0, *sorted(cuts - {len(batches)}), len(batches)]
    leases = list(pairwise(bounds))
    taken = []
    rank = Parts(case)
    for start, stop in data.draw(st.permutations(leases)):
        rank.add(*batches[start:stop])
        taken.append(pickle.dumps(take_totals(rank.metrics, start)))
    sums = [pickle.loads(each) for each in data.draw(st.permutations(taken))]
    while len(sums) > 1:  # also as a tree
        at = data.draw(st.integers(0, len(sums) - 2))
        sums[at : at + 2] = [add_totals(*sums[at : at + 2])]
    assert_same(compute_totals(Parts(case).metrics, sums[0]), expected)


def test_a_lease_without_samples_adds_nothing() -> None:
    rank = Parts("order")
    totals = [take_totals(rank.metrics, 0)]
    rank.add(range(SIZE))
    totals.append(take_totals(rank.metrics, 1))
    totals.append(take_totals(rank.metrics, 2))
    found = compute_totals(rank.metrics, reduce(add_totals, totals))
    assert found == {"m": list(range(SIZE))}


def test_the_confusion_matrix_of_a_lease_takes_memory_for_its_samples_alone() -> None:
    classes = 100
    everything = np.arange(classes**2)
    leases = [everything[:40], everything, everything[-30:], everything[:1]]
    labels = [(each // classes, each % classes) for each in leases]
    metrics: dict[str, BaseMetric] = {"m": ConfusionMatrix(classes)}
    MetricGroup(metrics, "non_dist").reset_to_sums()
    taken = []
    for place, (predicted, real) in enumerate(labels):
        metrics["m"].add(np.eye(classes)[predicted], real)
        taken.append(pickle.dumps(take_totals(metrics, place)))
    assert [len(each) < 2000 for each in taken] == [True, False, True, True]
    expected = np.zeros((classes, classes), int)
    for predicted, real in labels:
        np.add.at(expected, (real, predicted), 1)
    for order in permutations(taken):
        found = compute_totals(metrics, reduce(add_totals, map(pickle.loads, order)))
        assert (found["m"]["matrix"] == expected).all()
    assert compute_totals(metrics, pickle.loads(taken[0]))["m"]["matrix"].sum() == 40


class Columns(ConfusionMatrix):
    """A confusion matrix whose sums lie column by column in memory."""

    def sums_of(self, column: Any) -> Any:
        return np.asfortranarray(super().sums_of(column))


def test_sums_that_lie_column_by_column_are_added_as_others_are() -> None:
    classes = 100
    pairs = np.arange(classes**2)
    found = []
    for metric in (ConfusionMatrix(classes), Columns(classes)):
        metrics: dict[str, BaseMetric] = {"m": metric}
        MetricGroup(metrics, "non_dist").reset_to_sums()
        taken = []
        for place, each in enumerate((pairs, pairs[:40])):
            metric.add(each // classes, each % classes)
            taken.append(pickle.dumps(take_totals(metrics, place)))
        totals = reduce(add_totals, map(pickle.loads, taken))
        found.append(compute_totals(metrics, totals)["m"]["matrix"])
    assert (found[0] == found[1]).all()


def test_no_samples_at_all_are_an_error() -> None:
    metrics = {"accuracy": Accuracy()}
    MetricGroup(metrics, "non_dist").reset_to_sums()
    with pytest.raises(UsageError, match="no samples"):
        compute_totals(metrics, take_totals(metrics, 0))


class Own(Mean):
    """A metric that gathers in its own way."""

    def compute(self, size: int | None = None) -> Any:
        return {"all": self.dist_backend.all_gather_object(len(self._results))}


def test_a_metric_that_gathers_in_its_own_way_is_refused_by_name() -> None:
    check_totals({"accuracy": Accuracy(), "order": Order(), "documents": Documents()})
    with pytest.raises(UsageError, match=r"the metric 'own' can't be computed in leases: Own"):
        check_totals({"accuracy": Accuracy(), "own": Own()})

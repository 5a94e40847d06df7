"""What could make torchmetrics' result depend on the ranks is refused, on every rank alike."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import RankError, ShardPlan, UsageError, evaluate
from disteval.metrics import BaseMetric, from_torchmetrics
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import assert_each_raised, run_ranks, values

pytestmark = needs("torch", "torchmetrics")

CLASSES = 3


@pytest.mark.parametrize("world", [1, 3])
def test_a_size_that_would_drop_samples_is_an_error_on_every_rank(world: int, tm: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(tm.classification.MulticlassAccuracy(CLASSES), backend)
        plan = ShardPlan(4, world, backend.rank, "strided", pad=True)
        metric.add(np.eye(4, CLASSES, dtype=np.float32)[plan.indices], plan.indices % CLASSES)
        return metric.compute(3)

    added = {1: 4, 3: 6}[world]
    for outcome in run_ranks(world, rank):
        assert isinstance(outcome, UsageError)
        assert re.search(rf"\b3\b.*\b{added}\b", str(outcome)), outcome


def test_sizes_that_cannot_be_met_and_no_samples_are_errors_on_every_rank(tm: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(tm.SumMetric(), backend)
        metric.add(np.zeros(0))
        with pytest.raises(UsageError, match="no samples: add"):
            metric.compute()
        metric.add([1.0])
        with pytest.raises(UsageError, match="1 are missing"):
            metric.compute(3)
        with pytest.raises(UsageError, match=r"\[0, 1\]"):
            metric.compute(backend.rank)
        return metric.compute(2).item()

    assert values(run_ranks(2, rank)) == [2.0, 2.0]


def test_a_state_that_cannot_travel_is_an_error_on_every_rank(tm: Any) -> None:
    torch = framework("torch")

    class Sparse(tm.CatMetric):  # type: ignore[misc,name-defined]
        def update(self, value: Any) -> None:
            self.value.append(value.to_sparse() if value[0] else value)

    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(Sparse(), backend)
        metric.add(torch.tensor([float(backend.rank == 1)]))
        return metric.compute()

    assert_each_raised(run_ranks(3, rank), RankError, "Sparse", guilty=1)


def test_what_is_no_metric_is_refused(tm: Any) -> None:
    with pytest.raises(UsageError, match=r"\bfloat$"):
        from_torchmetrics(0.5)
    with pytest.raises(UsageError, match="MetricCollection"):
        from_torchmetrics(tm.MetricCollection([tm.SumMetric()]))


@pytest.mark.parametrize("only", [1, 3])
def test_a_mean_of_states_is_refused_where_ranks_with_different_states_weigh_alike(
    only: int, of_one_state: Callable[..., Any]
) -> None:
    averaged = of_one_state(framework("torch").tensor(0), "mean", lambda _, values: values.max())

    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(averaged, backend)
        metric.add([only, only] if backend.rank else [1])
        return metric.compute()

    outcomes = run_ranks(2, rank)
    if only == 1:  # the mean of equal states is this state, for integers too
        assert [found.tolist() for found in values(outcomes)] == [1, 1]
    for outcome in outcomes if only == 3 else ():
        assert isinstance(outcome, UsageError)
        assert re.search(r"OfOneState .*\[1, 2\]", str(outcome)), outcome


@pytest.mark.parametrize("few", [True, False])
def test_ranks_and_runs_that_go_on_with_other_thresholds_are_refused(
    few: bool, tm: Any, tmp_path: Path
) -> None:
    """Torchmetrics keeps them in a tensor, which is a setting as any other."""

    def made(other: bool) -> BaseMetric:
        thresholds = [0.1, 0.6 if other else 0.5, 0.9] if few else np.linspace(0, 0.5 + other / 2)
        return from_torchmetrics(tm.classification.BinaryAUROC(thresholds=[*thresholds]))

    samples = np.array([0.2, 0.8, 0.55, 0.4], np.float32), np.array([0, 1, 1, 0])

    def alone(backend: ThreadsDist) -> Any:
        metric = made(backend.rank == 1)
        metric.dist_backend = backend
        metric.add(*samples)
        return metric.compute()

    def evaluated(backend: ThreadsDist) -> Any:
        return evaluate(lambda x: x, samples, {"auc": made(backend.rank == 1)}, backend).metrics

    for function in (alone, evaluated):
        for outcome in run_ranks(2, function):
            assert isinstance(outcome, UsageError)
            assert ("'auc'" if function is evaluated else "BinaryAUROC") in str(outcome)
            assert "on rank 1" in str(outcome)
            assert function is alone or ("0.6" in str(outcome)) == few

    def going_on(other: bool) -> Any:
        return evaluate(lambda x: x, samples, {"auc": made(other)}, "non_dist", ledger=tmp_path)

    going_on(False)
    with pytest.raises(UsageError, match=r"the metric 'auc'.*another folder") as caught:
        going_on(True)
    assert ("0.6" in str(caught.value)) == few
    assert going_on(False).stored == 4


@pytest.mark.parametrize("grows", [False, True])
def test_what_update_keeps_outside_its_states_must_be_the_same_on_ranks(
    grows: bool, tm: Any
) -> None:
    class Careless(tm.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.add_state("total", framework("torch").tensor(0.0), "sum")
            self.kind: str | None = None
            self.seen: list[Any] = []

        def update(self, values: Any) -> None:
            self.total += values.sum()
            self.kind = str(values.dtype)
            if grows:
                self.seen.append(values)

        def compute(self) -> Any:
            return float(self.total), self.kind

    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(Careless(), backend)
        if backend.rank:
            metric.add(np.ones(backend.rank, dtype=np.float32))
        return metric.compute()

    # Rank 0 has no samples, and learns from the others what kind they are.
    assert values(run_ranks(2, rank)) == [(1.0, "torch.float32")] * 2
    outcomes = run_ranks(3, rank)
    if not grows:
        assert values(outcomes) == [(3.0, "torch.float32")] * 3
    for outcome in outcomes if grows else ():
        assert isinstance(outcome, UsageError)
        assert re.search(r"Careless .*\bseen\b", str(outcome)), outcome


@pytest.mark.filterwarnings("ignore:.* will save all extracted features")
def test_what_draws_at_random_or_looks_back_is_refused_also_inside_a_wrapper(tm: Any) -> None:
    kernel = importlib.import_module("torchmetrics.image.kid").KernelInceptionDistance
    flat = framework("torch").nn.Flatten()
    for refused, reason in (
        (tm.wrappers.BootStrapper(tm.SumMetric()), "BootStrapper"),
        (tm.wrappers.ClasswiseWrapper(tm.wrappers.MinMaxMetric(tm.SumMetric())), "MinMaxMetric"),
        (tm.RunningMean() + 1.0, "Running"),
        (kernel(flat), "KernelInception"),
    ):
        with pytest.raises(UsageError, match=reason):
            from_torchmetrics(refused)

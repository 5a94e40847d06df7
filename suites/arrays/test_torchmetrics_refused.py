"""What could make torchmetrics' result depend on the ranks is refused, on every rank alike."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from disteval import RankError, ShardPlan, UsageError, evaluate
from disteval.metrics import from_torchmetrics
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values

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
        assert f"size=3, but all ranks together added {added} samples" in str(outcome)
        assert "leave padding out before add(), as disteval.evaluate does" in str(outcome)


def test_sizes_that_cannot_be_met_and_no_samples_are_errors_on_every_rank(tm: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(tm.SumMetric(), backend)
        metric.add(np.zeros(0))
        with pytest.raises(UsageError, match="no samples: add"):
            metric.compute()
        metric.add([1.0])
        with pytest.raises(UsageError, match="1 are missing"):
            metric.compute(3)
        with pytest.raises(UsageError, match=r"different sizes: \[0, 1\]"):
            metric.compute(backend.rank)
        return metric.compute(2).item()

    assert values(run_ranks(2, rank)) == [2.0, 2.0]


def test_a_state_that_cannot_travel_is_an_error_on_every_rank(tm: Any) -> None:
    torch = framework("torch")

    def rank(backend: ThreadsDist) -> Any:
        metric: Any = from_torchmetrics(tm.CatMetric(), backend)
        metric.add([1.0])
        if backend.rank == 1:
            metric._results.metric.value.append(torch.zeros(1).to_sparse())
        return metric.compute()

    for outcome in run_ranks(3, rank):
        assert isinstance(outcome, RankError)
        assert outcome.rank == 1
        assert "could not send CatMetric: " in str(outcome)


def test_what_is_no_metric_is_refused(tm: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a torchmetrics.Metric, not .* of type float$"):
        from_torchmetrics(0.5)
    with pytest.raises(UsageError, match="type MetricCollection; give each metric of a collection"):
        from_torchmetrics(tm.MetricCollection([tm.SumMetric()]))


@pytest.mark.parametrize("only", [1, 3])
def test_a_mean_of_states_is_refused_where_ranks_with_different_states_weigh_alike(
    only: int, tm: Any
) -> None:
    class Averaged(tm.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.add_state("average", framework("torch").tensor(0), "mean")

        def update(self, values: Any) -> None:
            self.average = values.max()

        def compute(self) -> Any:
            return self.average

    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(Averaged(), backend)
        metric.add([only, only] if backend.rank else [1])
        return metric.compute()

    outcomes = run_ranks(2, rank)
    if only == 1:  # the mean of equal states is this state, for integers too
        assert [found.tolist() for found in values(outcomes)] == [1, 1]
    for outcome in outcomes if only == 3 else ():
        assert isinstance(outcome, UsageError)
        assert "Averaged averages its state average over ranks" in str(outcome)
        assert "but they have [1, 2]; make it a sum" in str(outcome)


def test_ranks_with_other_settings_are_told_so_before_anything_is_evaluated(tm: Any) -> None:
    def rank(backend: ThreadsDist) -> Any:
        metric = from_torchmetrics(tm.MeanSquaredError(squared=backend.rank == 0))
        return evaluate(lambda x: x, (np.ones(4), np.zeros(4)), {"mse": metric}, backend).metrics

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, UsageError)
        assert "do not evaluate the same thing: the metric 'mse' is" in str(outcome)


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
        assert "update of Careless changes seen, which is not one of its states" in str(outcome)


@pytest.mark.filterwarnings("ignore:.* will save all extracted features")
def test_what_draws_at_random_or_looks_back_is_refused_also_inside_a_wrapper(tm: Any) -> None:
    kernel = importlib.import_module("torchmetrics.image.kid").KernelInceptionDistance
    flat = framework("torch").nn.Flatten()
    for refused, reason in (
        (tm.wrappers.BootStrapper(tm.SumMetric()), "BootStrapper draws resamples on each rank"),
        (tm.wrappers.ClasswiseWrapper(tm.wrappers.MinMaxMetric(tm.SumMetric())), "MinMaxMetric"),
        (tm.RunningMean() + 1.0, "Running keeps the last batches"),
        (kernel(flat), "KernelInceptionDistance draws samples"),
    ):
        with pytest.raises(UsageError, match=reason):
            from_torchmetrics(refused)

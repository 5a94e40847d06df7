"""A failure on the way to a result reaches every rank, each time, and forgets no sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from disteval import RankError, UsageError
from disteval.metrics import (
    AUROC,
    Accuracy,
    BaseMetric,
    Mean,
    MetricGroup,
    SummableMetric,
    Weighted,
    base,
)
from disteval.metrics.rows import Sums

from suites.helpers.thread_world import run_ranks


class FromDevice(SummableMetric):
    """A metric whose rows are on a device and can't be read while the device is broken."""

    broken = True

    def add(self, rows: int) -> None:
        self._append_later(rows, lambda: self._bring(rows))

    def _bring(self, rows: int) -> npt.NDArray[Any]:
        if self.broken:
            raise OSError("the device is lost")
        return np.ones((rows, 1), dtype=np.int64)

    def sums_of(self, column: npt.NDArray[Any]) -> Sums:
        return np.asarray(column.sum(axis=0))

    def from_sums(self, sums: Sums, size: int) -> Any:
        return size


def test_rows_that_can_not_be_had_from_a_device_are_not_forgotten() -> None:
    metric = FromDevice(dist_backend="non_dist")
    metric.add(3)
    for _ in range(2):
        with pytest.raises(RankError, match="could not sum up FromDevice: OSError: the device is"):
            metric.compute()
    metric.broken = False
    assert metric.compute() == 3


def group_of(**metrics: BaseMetric) -> dict[str, BaseMetric]:
    return metrics


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (
            lambda r: group_of(a=Mean(), **({} if r else {"b": Mean()})),
            "metrics is ['a', 'b'] on rank 0 and ['a']",
        ),
        (
            lambda r: group_of(a=Mean(), **({"b": Mean()} if r else {})),
            "metrics is ['a'] on rank 0 and ['a', 'b']",
        ),
        (lambda r: group_of(**{"ab"[r]: Mean()}), "metrics is ['a'] on rank 0 and ['b']"),
        (lambda r: group_of(a=Accuracy(topk=r + 1)), "the metric 'a' is \"Accuracy("),
        (
            lambda r: group_of(a=Mean(dist_collect_mode=("cat", "unzip")[r])),
            "the metric 'a' is \"Mean(",
        ),
        (lambda r: group_of(a=(Entries, AUROC)[r]()), "the metric 'a' is 'Entries()'"),
    ],
)
def test_ranks_that_compute_different_metrics_all_get_an_error(
    made: Callable[[int], dict[str, BaseMetric]], what: str
) -> None:
    def rank(backend: Any) -> Any:
        return MetricGroup(made(backend.rank), dist_backend=backend).compute()

    for error in run_ranks(2, rank):
        assert isinstance(error, UsageError)
        assert str(error).startswith(f"ranks do not evaluate the same thing: {what}")
        assert str(error).endswith("on rank 1; give every rank the same")


@pytest.mark.parametrize(
    ("made", "first", "second"),
    [
        (lambda r: Accuracy(topk=r + 1), "Accuracy(", "Accuracy("),
        (lambda r: Accuracy(thrs=(0.1, 0.2)[r]), "thrs=(0.1,)", "thrs=(0.2,)"),
        (lambda r: Mean(dist_collect_mode=("cat", "unzip")[r]), "Mean(", "Mean("),
        (lambda r: (Accuracy, Mean)[r](), "Accuracy(", "Mean("),
        (lambda r: Weighted((Accuracy(), Mean())[r]), "Weighted(Accuracy(", "Weighted(Mean("),
        (lambda r: (Entries, AUROC)[r](), "Entries()", "AUROC("),
        (lambda r: (Mean, AUROC)[r](), "Mean(", "AUROC("),
        (lambda r: (Entries, Counted)[r](), "Entries()", "Counted()"),
    ],
)
def test_ranks_that_compute_one_metric_each_which_differ_all_get_an_error(
    made: Callable[[int], BaseMetric], first: str, second: str
) -> None:
    def rank(backend: Any) -> Any:
        metric = made(backend.rank)
        metric.dist_backend = backend
        return metric.compute()

    errors = run_ranks(2, rank)
    for error in errors:
        assert isinstance(error, UsageError)
        assert str(error) == str(errors[0])
        begin, _, end = str(error).partition(" on rank 0 and ")
        assert begin.startswith("ranks do not evaluate the same thing: the metric is ")
        assert first in begin
        assert second in end


def test_settings_are_compared_anew_after_a_reset() -> None:
    def rank(backend: Any) -> Any:
        metric = Accuracy(dist_backend=backend)
        metric.add(np.eye(2), [0, 1])
        same = metric.compute()
        if backend.rank:
            metric = Accuracy(thrs=0.5, dist_backend=backend)  # and this rank has no samples
        with pytest.raises(UsageError, match=r"thrs=\(None,\).* on rank 0 and .*thrs=\(0.5,\)"):
            metric.compute()
        metric.thrs = (0.5,)
        metric.reset()
        metric.add(np.eye(2), [0, 1])
        return same, metric.compute()

    for outcome in run_ranks(2, rank):
        assert outcome == ({"top1": 1.0}, {"top1": 1.0})


@pytest.mark.parametrize("made", [Accuracy, lambda: Weighted(Accuracy())])
def test_a_setting_that_one_rank_changes_after_its_first_sample_is_an_error_on_all(
    made: Callable[[], Any],
) -> None:
    def rank(backend: Any) -> Any:
        metric = made()
        metric.dist_backend = backend
        weights = {"weights": [1.0, 1.0]} if isinstance(metric, Weighted) else {}
        metric.add(np.eye(2), [0, 1], **weights)
        same = metric.compute()
        if backend.rank:
            getattr(metric, "metric", metric).thrs = (0.5,)
        with pytest.raises(UsageError, match=r"thrs=\(None,\).* on rank 0 and .*thrs=\(0.5,\)"):
            metric.compute()
        return same

    assert run_ranks(2, rank) == [{"top1": 1.0}] * 2


def test_a_metric_and_a_group_on_different_ranks_are_an_error_on_both() -> None:
    def rank(backend: Any) -> Any:
        metric: Any = Mean(dist_backend=backend)
        return (MetricGroup({"a": metric}, backend) if backend.rank else metric).compute()

    for error in run_ranks(2, rank):
        assert isinstance(error, UsageError)
        assert str(error).startswith("ranks do not evaluate the same thing: ")


class Entries(BaseMetric):
    """A metric whose result is the number of entries."""

    def add(self, entry: Any) -> None:
        self._results.append(entry)

    def compute_metric(self, results: list[Any]) -> int:
        return len(results)


class Counted(Entries):
    """Another metric of entries."""


def test_entries_that_rank_0_has_no_memory_for_are_an_error_on_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unpack(form: str, packed: Any) -> list[Any]:
        raise MemoryError

    monkeypatch.setattr(base, "unpack", unpack)

    def rank(backend: Any) -> Any:
        metric = Entries(dist_backend=backend)
        metric.add(backend.rank)
        return metric.compute()

    for outcome in run_ranks(2, rank):
        assert isinstance(outcome, RankError)
        assert "rank 0 could not compute Entries: MemoryError" in str(outcome)

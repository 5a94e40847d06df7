"""What is no array of numbers is refused in a sentence, by every metric, and nothing is added."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from disteval import RankError, UsageError
from disteval.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    BaseMetric,
    CalibrationError,
    ConfusionMatrix,
    CrossEntropy,
    ExactMatch,
    Mean,
    MetricGroup,
    MultiLabel,
    Perplexity,
    Regression,
    Retrieval,
    Segmentation,
    SummableMetric,
)

METRICS: list[Callable[[], BaseMetric]] = [
    Accuracy,
    Mean,
    CrossEntropy,
    lambda: ConfusionMatrix(4),
    AveragePrecision,
    AUROC,
    CalibrationError,
    ExactMatch,
    lambda: MultiLabel(4),
    Perplexity,
    Regression,
    Retrieval,
    lambda: Segmentation(4),
]


@pytest.mark.parametrize("make", METRICS)
@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (None, "not None"),
        ({"logits": [0.5]}, "not a value of type dict"),
        ({0.5, 0.1}, "not a value of type set"),
        (iter([0.5]), "not a value of type list_iterator"),
        ([[1.0, 2.0], [3.0]], "not a list whose parts have different shapes"),
    ],
)
def test_what_is_no_array_is_refused(
    make: Callable[[], BaseMetric], wrong: Any, found: str
) -> None:
    metric = make()
    with pytest.raises(UsageError, match=found):
        metric.add(*[wrong] * (1 if isinstance(metric, Mean) else 2))
    assert len(metric._results) == 0


@pytest.mark.parametrize("meta", ["classes", [1], 3])
def test_facts_about_the_data_set_are_a_dict(meta: Any) -> None:
    with pytest.raises(UsageError, match=r"dataset_meta must be a dict of facts .*, not "):
        Accuracy(dataset_meta=meta)


def test_a_group_refuses_what_is_no_metric() -> None:
    with pytest.raises(UsageError, match="the metric 'mean' must be an instance"):
        MetricGroup({"mean": Mean}, "non_dist")  # type: ignore[dict-item]


def test_a_group_refuses_one_metric_under_two_names() -> None:
    mean = Mean()
    with pytest.raises(UsageError, match="metrics 'a' and 'b' are one object, which would add"):
        MetricGroup({"a": mean, "b": mean}, "non_dist")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Segmentation(3, ignore_label="255"), "ignore_label must be a whole number"),  # type: ignore[arg-type]
        (lambda: Segmentation(3, ignore_label=1.5), "or None to count every label, not 1.5"),  # type: ignore[arg-type]
        (lambda: Perplexity(ignore_label=True), "ignore_label must be a whole number"),
        (lambda: Accuracy(counts="no"), "counts must be True or False, not 'no'"),  # type: ignore[arg-type]
        (lambda: Accuracy(topk=np.array(1)), r"each k of topk .* not array\(1\)"),  # type: ignore[arg-type]
        (lambda: Accuracy(thrs=np.array(0.5)), r"each threshold of thrs .* not array\(0.5\)"),  # type: ignore[arg-type]
        (lambda: Retrieval(topk=np.array(1)), r"each k of topk .* not array\(1\)"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_setting_is_refused_when_the_metric_is_made(
    make: Callable[[], BaseMetric], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_the_ignored_label_may_be_an_integer_of_numpy() -> None:
    assert Segmentation(3, ignore_label=np.uint8(255)).ignore_label == 255


class Forgetful(Mean):
    """A metric whose author forgot a line."""

    def __init__(self) -> None:
        self.mine = 1


def test_a_metric_of_ones_own_is_told_to_call_the_base() -> None:
    metric = Forgetful()
    for use in (lambda: metric.add([1.0]), metric.compute):
        with pytest.raises(UsageError, match=r"Forgetful has no _\w+ yet; call super\(\).__init__"):
            use()
    assert not hasattr(metric, "unknown")
    assert copy.deepcopy(Mean(dist_backend="non_dist"))([1.0]) == {"mean": 1.0}


class Inexact(SummableMetric):
    """A metric whose sums are not those of any other order."""

    def __init__(self, sums: Any) -> None:
        super().__init__(dist_backend="non_dist")
        self._sums = sums

    def add(self, values: Any) -> None:
        self._append(np.asarray(values))

    def sums_of(self, column: Any) -> Any:
        return self._sums

    def from_sums(self, sums: Any, size: int) -> Any:
        return sums


@pytest.mark.parametrize(
    ("sums", "found"),
    [
        (np.array([0.1]), r"float64 of shape \(1,\)"),
        (np.array(3), r"int64 of shape \(\)"),
        (3, r"int of shape \(\)"),
        (np.array([True]), r"bool of shape \(1,\)"),
    ],
)
def test_sums_that_are_no_arrays_of_integers_are_refused(sums: Any, found: str) -> None:
    with pytest.raises(RankError, match=f"sums_of returned {found}; it must return an array of"):
        Inexact(sums)([1, 2])


@pytest.mark.parametrize("make", [AUROC, AveragePrecision])
def test_a_ranking_of_no_samples_says_so(make: Callable[[], BaseMetric]) -> None:
    with pytest.raises(RankError, match=r"no samples: add\(\) was not called on any rank"):
        make().compute()


def test_masked_elements_are_refused() -> None:
    values = np.ma.masked_array([1.0, 2.0, 100.0], mask=[0, 0, 1])
    with pytest.raises(UsageError, match="without masked elements, because NumPy drops the mask"):
        Mean().add(values)
    Mean().add(np.ma.masked_array([1.0, 2.0]))

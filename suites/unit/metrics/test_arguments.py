"""What is no array of numbers is refused in a sentence, by every metric, and nothing is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from disteval import UsageError
from disteval.metrics import (
    AUROC,
    Accuracy,
    AveragePrecision,
    BaseMetric,
    ConfusionMatrix,
    CrossEntropy,
    Mean,
    MetricGroup,
)

METRICS = [Accuracy, Mean, CrossEntropy, lambda: ConfusionMatrix(4), AveragePrecision, AUROC]


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

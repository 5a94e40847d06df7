"""Precision, recall and F1 of several labels against scikit-learn, torchmetrics, other worlds."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.metrics import MultiLabel
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import framework, needs
from suites.metrics.worlds import everywhere

NAMES = ["precision", "recall", "f1"]


def drawn(size: int, classes: int, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    scores = random.choice([0.0, 0.25, 0.5, 0.75, math.nan], (size, classes)).astype(np.float32)
    return scores, random.random((size, classes)) < random.random(classes)


def plain(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}


@needs("sklearn")
def test_it_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import precision_recall_fscore_support

    @settings(max_examples=25)
    @given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 1 << 30))
    def check(size: int, classes: int, seed: int) -> None:
        scores, labels = drawn(size, classes, seed)
        if classes == 1:  # scikit-learn takes one column for one label or none
            scores, labels = np.pad(scores, [(0, 0), (0, 1)]), np.pad(labels, [(0, 0), (0, 1)])
        found = MultiLabel(scores.shape[1], (0.25, 0.5), dist_backend="non_dist")(scores, labels)
        for thr in (0.25, 0.5):
            for average in (None, "macro", "micro"):
                *expected, _ = precision_recall_fscore_support(
                    labels, scores > thr, average=average, zero_division=0
                )
                end = f"_{average}_thr-{thr:.2f}" if average else f"_thr-{thr:.2f}"
                for name, value in zip(NAMES, expected, strict=True):
                    assert found[name + end] == pytest.approx(value, rel=1e-14)

    check()


@needs("torch", "torchmetrics")
def test_it_agrees_with_torchmetrics() -> None:
    torch, torchmetrics = framework("torch"), framework("torchmetrics")
    scores, labels = drawn(40, 5, 0)
    scores = np.nan_to_num(scores)
    oracle = torchmetrics.classification.MultilabelF1Score(5, 0.5, average="macro")
    expected = oracle(torch.tensor(scores), torch.tensor(labels)).item()
    found = MultiLabel(5, dist_backend="non_dist")(torch.tensor(scores), torch.tensor(labels))
    assert found["f1_macro"] == pytest.approx(expected, rel=1e-6)


@settings(max_examples=15)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 1 << 30))
def test_it_is_the_same_in_any_world(size: int, classes: int, seed: int) -> None:
    scores, labels = drawn(size, classes, seed)
    results = everywhere(partial(MultiLabel, classes, (0.25, 0.5)), scores, labels)
    assert [plain(found) for found in results] == [plain(results[0])] * len(results)


def test_a_threshold_has_the_precision_of_the_scores() -> None:
    for dtype in (np.float32, np.float64):  # 0.1 is not above 0.1
        for thr, recall in ((0.1, 0.0), (np.nextafter(dtype(0.1), dtype(0)), 1.0)):
            metric = MultiLabel(1, float(thr), dist_backend="non_dist")
            assert metric(np.array([[0.1]], dtype=dtype), [[1]])["recall_micro"] == recall
    assert MultiLabel(1, dist_backend="non_dist")([[1]], [[True]])["f1_micro"] == 1.0


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), r"scores of shape \(N, 2\), not \(2, 3\)"),
        (np.zeros(2), np.zeros(2), r"scores of shape \(N, 2\), not \(2,\)"),
        (np.zeros((2, 2)), np.zeros(2), r"labels must have shape \(2, 2\), .*, not \(2,\)"),
        (np.zeros((1, 2)), [[0, 2]], "labels must be truth values, 0 or 1, but one is 2"),
        (np.zeros((1, 2)), [[0, math.nan]], "0 or 1, but one is nan"),
    ],
)
def test_bad_arguments_are_named_and_add_nothing(
    predictions: Any, labels: Any, message: str
) -> None:
    metric = MultiLabel(2, dist_backend="non_dist")
    metric.add([[0.9, 0.1]], [[1, 1]])
    with pytest.raises(UsageError, match=message):
        metric.add(predictions, labels)
    assert metric.compute(size=1)["recall"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("thrs", [None, (), (0.5, None), "0.5", math.nan, True, (0.501, 0.502)])
def test_bad_thresholds_are_refused(thrs: Any) -> None:
    with pytest.raises(UsageError, match=r"thrs must be|the same name"):
        MultiLabel(2, thrs)
    with pytest.raises(UsageError, match="num_classes must be a whole number from 1 up"):
        MultiLabel(0)

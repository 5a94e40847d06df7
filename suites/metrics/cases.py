"""Metrics that follow from sums, and samples for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from disteval.metrics import (
    Accuracy,
    CalibrationError,
    ConfusionMatrix,
    CrossEntropy,
    ExactMatch,
    Mean,
    MultiLabel,
    Perplexity,
    Regression,
    Retrieval,
    Segmentation,
    SummableMetric,
)

SIZE = 40
random = np.random.default_rng(0)
scores = random.normal(size=(SIZE, 4)).astype(np.float32)
probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
classes = random.integers(0, 4, SIZE)
places = random.integers(0, 4, (SIZE, 5))
logits = random.normal(size=(SIZE, 5, 4))
mask = np.arange(5) < random.integers(1, 6, SIZE)[:, None]

CASES: dict[str, tuple[Callable[[], SummableMetric], tuple[Any, ...], dict[str, Any]]] = {
    "accuracy": (lambda: Accuracy((1, 2), counts=True), (scores, classes), {}),
    "calibration error": (CalibrationError, (probabilities, classes), {}),
    "confusion matrix": (lambda: ConfusionMatrix(4), (scores, classes), {}),
    "cross-entropy": (CrossEntropy, (scores, classes), {}),
    "exact match": (ExactMatch, (places % 2, places // 2), {}),
    "mean": (Mean, (scores[:, 0],), {}),
    "several labels": (lambda: MultiLabel(4, (0.0, 0.5)), (scores, places[:, :4] > 1), {}),
    "perplexity": (
        Perplexity,
        (logits, places),
        {"mask": mask, "byte_counts": random.integers(1, 9, SIZE)},
    ),
    "regression": (Regression, (scores[:, 0], scores[:, 1]), {}),
    "retrieval": (lambda: Retrieval((1, 3)), (scores, places[:, :4] + 1), {}),
    "segmentation": (lambda: Segmentation(4, 3), (places, places[::-1].copy()), {}),
}
"""Makes each metric; and the positional and the named arguments of ``add``."""


def alone(metric: SummableMetric, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return what a metric finds in one process."""
    metric.dist_backend = "non_dist"
    metric.add(*args, **named)
    return metric.compute()


def assert_same(found: Any, expected: Any) -> None:
    """Check that two results are equal to the last bit, at any depth."""
    if isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    else:
        np.testing.assert_array_equal(found, expected, strict=not np.isscalar(expected))

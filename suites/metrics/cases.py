"""Metrics and samples for them, and what they find in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from disteval.metrics import BaseMetric

from suites.properties.cases import LABELS, METRICS, MOST, SCORES, Case, Entries

_FROM_SUMS = (
    "accuracy", "calibration error", "confusion matrix", "cross-entropy", "exact match", "mean",
    "several labels", "perplexity", "regression", "retrieval", "segmentation",
)  # fmt: skip

SIZE = MOST
losses = METRICS["mean"].args[0]


SUMS = {name: METRICS[name] for name in _FROM_SUMS}
"""Metrics that follow from sums."""

CASES: dict[str, Case] = {
    **SUMS,
    "AUROC": METRICS["AUROC"],
    "average precision": METRICS["average precision"],
    "entries": Case(Entries, (losses, LABELS), {}),
    "entries that are lists": Case(Entries, (SCORES,), {}),
}


def alone(metric: BaseMetric, args: Any, named: Mapping[str, Any], rows: Any = slice(None)) -> Any:
    """Return what a metric finds of some rows in one process."""
    metric.dist_backend = "non_dist"
    metric.add(
        *(np.asarray(array)[rows] for array in args),
        **{name: np.asarray(array)[rows] for name, array in named.items()},
    )
    return metric.compute()


def assert_same(found: Any, expected: Any) -> None:
    """Check that two results are equal to the last bit, at any depth."""
    if isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert found == expected
    else:
        np.testing.assert_array_equal(found, expected, strict=not np.isscalar(expected))

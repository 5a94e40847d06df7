"""Precision, recall and F1 of several labels against scikit-learn."""

from typing import Any

import numpy as np
import pytest
from disteval.metrics import MultiLabel
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.needs import needs

NAMES = ["precision", "recall", "f1"]


def drawn(size: int, classes: int, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    scores = random.choice([0.0, 0.25, 0.5, 0.75], (size, classes)).astype(np.float32)
    return scores, random.random((size, classes)) < random.random(classes)


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
        usual = MultiLabel(scores.shape[1], dist_backend="non_dist")(scores, labels)
        assert usual["f1_macro"] == found["f1_macro_thr-0.50"]

    check()


def test_a_threshold_has_the_precision_of_the_scores() -> None:
    for dtype in (np.float32, np.float64):  # 0.1 is not above 0.1
        for thr, recall in ((0.1, 0.0), (np.nextafter(dtype(0.1), dtype(0)), 1.0)):
            metric = MultiLabel(1, float(thr), dist_backend="non_dist")
            assert metric(np.array([[0.1]], dtype=dtype), [[1]])["recall_micro"] == recall
    assert MultiLabel(1, dist_backend="non_dist")([[1]], [[True]])["f1_micro"] == 1.0

"""The confusion matrix, and precision, recall and F1 from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.metrics.arrays import Array, Floats
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.exact import as_counts
from disteval.metrics.labels import class_indices, scores_of


class ConfusionMatrix(SummableMetric):
    """The confusion matrix, and precision, recall and F1.

    The predicted class is the one with the best score; of equal scores, the one with the lower
    index, as in `Accuracy`. Every rank sends its matrix of 8 C**2 bytes.

    The result is a dict:

    - ``matrix``: int64 of shape (C, C); the row is the true class, the column the predicted one.
    - ``precision``, ``recall`` and ``f1``: of each class, float64 of shape (C,); and ``support``,
      int64 of shape (C,), the number of its samples.
    - ``precision_macro``, ``precision_micro`` and ``precision_weighted``; likewise for ``recall``
      and ``f1``.

    The values equal those of scikit-learn's ``precision_recall_fscore_support`` with
    ``labels=range(num_classes), zero_division=0``: a fraction whose denominator is zero is 0.0, and
    a class that neither occurs nor is predicted counts as 0.0 in the macro averages.

    Args:
        num_classes: The number of classes, C, from 1 up.
        **common: The arguments of `BaseMetric`, by name.
    """

    def __init__(self, num_classes: int, **common: Any) -> None:
        super().__init__(**common)
        self.num_classes = check_count("num_classes", num_classes)
        self._dtype = np.min_scalar_type(self.num_classes - 1)

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: Scores of shape (N, C), real numbers of any framework and dtype; or
                predicted classes of shape (N,).
            labels: The true classes, shape (N,) or (N, 1); integers, or floats that hold integers.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        classes = self.num_classes
        must = f"scores of shape (N, {classes}) or classes of shape (N,)"
        found = scores_of(predictions, labels, must, (1, 2), classes)
        true = class_indices(labels, classes)
        if found.ndim == 1:
            predicted = class_indices(found, classes, "predictions")
        else:
            predicted = found.argmax(axis=1)
        self._append(np.stack([true, predicted], axis=1).astype(self._dtype), ids)

    def sums_of(self, column: Array) -> Sums:
        """Count the samples of each true and predicted class: int64 of shape (C, C)."""
        classes = self.num_classes
        cells = column[:, 0].astype(np.int64) * classes + column[:, 1]
        counts: Sums = np.bincount(cells, minlength=classes**2).reshape(classes, classes)
        return counts.astype(np.int64, copy=False)

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Compute the fractions from the matrix."""
        matrix = as_counts(sums)
        right, true, predicted = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
        per_class = precision_recall_f1(right, true, predicted)
        found: dict[str, Any] = {"matrix": matrix, **per_class, "support": true}
        for name, values in per_class.items():
            found[f"{name}_macro"] = float(values.mean())
            # Each sample has one class and one prediction, so all three are the accuracy.
            found[f"{name}_micro"] = int(right.sum()) / size
            found[f"{name}_weighted"] = float((values * true).sum() / size)
        return found


def precision_recall_f1(right: Sums, true: Sums, predicted: Sums) -> dict[str, Floats]:
    """Return precision, recall and F1 of each class from counts of shape (C,)."""
    return {
        "precision": fractions(right, predicted),
        "recall": fractions(right, true),
        "f1": fractions(2 * right, true + predicted),
    }


def fractions(parts: Sums, wholes: Sums, empty: float = 0.0) -> Floats:
    """Divide counts of shape (C,) and round once; ``empty`` stands where the denominator is 0."""
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return np.array([part / whole if whole else empty for part, whole in pairs], np.float64)

"""Precision, recall and F1 of samples that may have several labels each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.metrics.arrays import Array
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.confusion import precision_recall_f1
from disteval.metrics.exact import as_counts
from disteval.metrics.labels import above, scores_of, thresholds_of, truths_of


class MultiLabel(SummableMetric):
    """Precision, recall and F1 where each sample has any number of C labels.

    A label is predicted if its score is strictly greater than the threshold. The result is a dict:
    ``precision``, float64 of shape (C,), one for each label; ``precision_macro``, their mean;
    ``precision_micro``, from the counts over all labels; and likewise ``recall`` and ``f1``. With
    several thresholds the keys end in ``_thr-0.50``, with two decimals.

    The values equal those of scikit-learn's ``precision_recall_fscore_support`` with
    ``zero_division=0``: a fraction whose denominator is zero is 0.0, also in the macro averages.

    Args:
        num_classes: The number of labels, C, from 1 up.
        thrs: One threshold or several, in the unit of the scores: 0.5 fits probabilities, and 0
            fits logits. A threshold is compared in the precision of the scores; half precisions
            count as float32.
        **common: The arguments of `BaseMetric`, by name.
    """

    def __init__(
        self, num_classes: int, thrs: float | Sequence[float] = 0.5, **common: Any
    ) -> None:
        super().__init__(**common)
        self.num_classes = check_count("num_classes", num_classes)
        self._thresholds = thresholds_of(thrs)
        self.thrs = tuple(thr for thr in self._thresholds.values() if thr is not None)
        if len(self.thrs) < max(1, len(self._thresholds)):
            raise UsageError(f"thrs must be one number or several, not {thrs!r}")

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: Scores of shape (N, C), real numbers of any framework and dtype; or 0 and 1
                with a threshold between them.
            labels: Which labels each sample has, shape (N, C): truth values, 0 or 1.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        classes = self.num_classes
        must = f"scores of shape (N, {classes})"
        scores = scores_of(predictions, labels, must, classes=classes)
        true = truths_of(labels, scores.shape, "labels")
        bits = np.concatenate([true, *(above(scores, thr) for thr in self.thrs)], axis=1)
        self._append(np.packbits(bits, axis=1), ids)

    def sums_of(self, column: Array) -> Sums:
        """Count samples: int64 of shape (1 + 2 K, C), for K thresholds.

        These are the samples that have each label; then, for each threshold, those for which it was
        predicted; then those for which it was predicted rightly.
        """
        shape = (len(column), 1 + len(self.thrs), self.num_classes)
        bits = np.unpackbits(column, axis=1, count=shape[1] * shape[2]).reshape(shape)
        right = bits[:, 1:] & bits[:, :1]
        return np.asarray(np.concatenate([bits, right], axis=1).sum(axis=0, dtype=np.int64))

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Compute the fractions from the counts."""
        true, *counts = as_counts(sums)
        found: dict[str, Any] = {}
        for at, suffix in enumerate(self._thresholds):
            parts = counts[len(self.thrs) + at], true, counts[at]
            whole = precision_recall_f1(*(part.sum(keepdims=True) for part in parts))
            for name, values in precision_recall_f1(*parts).items():
                found[f"{name}{suffix}"] = values
                found[f"{name}_macro{suffix}"] = float(values.mean())
                found[f"{name}_micro{suffix}"] = float(whole[name][0])
        return found

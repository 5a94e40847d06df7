"""Calibration: how far predicted probabilities are from the frequencies of being right."""

from __future__ import annotations

from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.metrics.arrays import Array, refuse
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.confusion import fractions
from disteval.metrics.exact import as_counts, exact_sum
from disteval.metrics.labels import class_indices, scores_of
from disteval.metrics.mean import ROUNDING

_UNIT = 1 << 1074


class CalibrationError(SummableMetric):
    """The expected calibration error over bins of equal width.

    A sample has a confidence, and is right or wrong: of C classes, the confidence is the largest
    probability, and the sample is right if that class is its label; with one probability for each
    sample, the confidence is that probability, and the sample is right if its label is 1. Bin b of
    B holds the confidences from b / B up to, but without, (b + 1) / B; the last one also holds 1.
    The result is a dict:

    - ``calibration_error``: the mean over the bins of the absolute difference between confidence
      and fraction of right samples, where a bin counts as often as it has samples (C. Guo et al.,
      "On Calibration of Modern Neural Networks", 2017).
    - ``max_calibration_error``: the largest of these differences.
    - ``bin_counts``, int64; ``bin_confidence`` and ``bin_accuracy``, float64: the number, the mean
      confidence and the fraction of right samples of each bin, shape (B,); 0 in a bin without
      samples.

    Confidences are summed exactly, and ``calibration_error`` is rounded once.

    Args:
        bins: The number of bins, B, from 1 up.
        **common: The arguments of `BaseMetric`, by name.
    """

    def __init__(self, bins: int = 15, **common: Any) -> None:
        super().__init__(**common)
        self.bins = check_count("bins", bins)

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: Probabilities of C classes, shape (N, C), each row of which sums to 1; or
                of class 1, shape (N,). Real numbers of any framework and dtype. Of equal largest
                probabilities the first counts.
            labels: The true classes, shape (N,) or (N, 1); integers, or floats that hold integers.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        must = "probabilities of shape (N, C) or (N,)"
        found = scores_of(predictions, labels, must, (1, 2)).astype(np.float64)
        must, remedy = "probabilities from 0 to 1", "; give the softmax or the sigmoid of logits"
        refuse(f"predictions must be {must}", found, (found < 0) | (found > 1), remedy)
        if found.ndim == 1:
            confidence, right = found, class_indices(labels, 2) == 1
        else:
            sums = found.sum(axis=1)
            remedy = " as their sum; give those of classes that exclude each other"
            must = "the probabilities of each sample must sum to 1"
            refuse(must, sums, abs(sums - 1) > ROUNDING, remedy)
            confidence = found.max(axis=1)
            right = class_indices(labels, found.shape[1]) == found.argmax(axis=1)
        self._append(np.stack([confidence, right], axis=1), ids)

    def sums_of(self, column: Array) -> Sums:
        """Sum exactly: Python integers of shape (B, 3).

        These are the number of samples of each bin, the right ones, and the sum of the confidences
        in units of 2**-1074.
        """
        edges = np.arange(1, self.bins) / self.bins
        bins = np.searchsorted(edges, column[:, 0], side="right")
        sums = np.zeros((self.bins, 3), dtype=object)
        for at in np.unique(bins).tolist():
            confidence, right = column[bins == at].T
            sums[at] = len(right), int(right.sum()), exact_sum(confidence)[0]
        return sums

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Compute the differences of the bins as fractions, and round each result once."""
        rows = [tuple(map(int, row)) for row in sums.tolist()]
        gaps = [abs(confidence - right * _UNIT) for _, right, confidence in rows]
        counts, right = as_counts(sums[:, 0]), sums[:, 1]
        return {
            "calibration_error": sum(gaps) / (size * _UNIT),
            "max_calibration_error": max(
                gap / (count * _UNIT) for gap, (count, *_) in zip(gaps, rows, strict=True) if count
            ),
            "bin_counts": counts,
            "bin_confidence": np.array([each / (max(n, 1) * _UNIT) for n, _, each in rows]),
            "bin_accuracy": fractions(right, counts),
        }

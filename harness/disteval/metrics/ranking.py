"""Metrics of how well scores separate two classes: average precision and AUROC."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import Numbers
from disteval.metrics.base import BaseMetric
from disteval.metrics.exact import float64_of
from disteval.metrics.labels import check_paired, class_indices
from disteval.metrics.state import no_samples


class _Ranking(BaseMetric):
    """The base of metrics that count the positive and negative samples at each distinct score."""

    _name: ClassVar[str]

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: The scores of the positive class, shape (N,) or (N, 1), real numbers of any
                framework and dtype. Integers must be from -2**53 to 2**53.
            labels: 1 for a positive sample, 0 for a negative one; shape (N,) or (N, 1).
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        check_paired(predictions, labels)
        scores = float64_of(predictions, "predictions")
        true = class_indices(labels, 2)
        self._extend(zip(scores.tolist(), true.tolist(), strict=True), ids)

    def compute_metric(self, results: list[Any]) -> dict[str, float]:
        """Compute over the (score, label) pairs of all samples, in any order.

        Raises:
            UsageError: There are no samples, or all are of one class.
        """
        scores = np.array([score for score, _ in results], dtype=np.float64)
        positive = np.array([label for _, label in results], dtype=np.bool_)
        if not results:
            raise no_samples()
        if not positive.any() or positive.all():
            kind = "positive" if positive.all() else "negative"
            raise UsageError(
                f"all {len(positive)} samples are {kind}; this metric needs samples of both classes"
            )
        # Samples with equal scores share one threshold; the highest comes first.
        distinct, at = np.unique(-scores, return_inverse=True)
        positives = np.bincount(at[positive], minlength=len(distinct))
        negatives = np.bincount(at[~positive], minlength=len(distinct))
        return {self._name: self._of(positives, negatives)}

    @abstractmethod
    def _of(self, positives: Numbers, negatives: Numbers) -> float:
        """Compute from the counts of samples at each distinct score, the highest score first."""


class AveragePrecision(_Ranking):
    """The average precision of binary targets: the mean of the precision at each positive sample.

    The result is a dict with ``average_precision``. The precision at a sample is the fraction of
    positive ones among all samples with the same score or a higher one, without interpolation, as
    in scikit-learn's ``average_precision_score``.

    The arguments are those of `BaseMetric`.
    """

    _name = "average_precision"

    def _of(self, positives: Numbers, negatives: Numbers) -> float:
        found = positives.cumsum()
        precision = found / (found + negatives.cumsum())
        return math.fsum((precision * positives).tolist()) / int(found[-1])


class AUROC(_Ranking):
    """The area under the ROC curve of binary targets, correctly rounded.

    The result is a dict with ``auroc``: the probability that a positive sample has a higher score
    than a negative one, where equal scores count half (Mann and Whitney's U), as in scikit-learn's
    ``roc_auc_score``.

    The arguments are those of `BaseMetric`.
    """

    _name = "auroc"

    def _of(self, positives: Numbers, negatives: Numbers) -> float:
        # Twice U, an integer: each positive sample above a negative one counts two.
        above = 2 * positives.cumsum() - positives
        pairs = int(positives.sum()) * int(negatives.sum())
        return int((above * negatives).sum()) / (2 * pairs)

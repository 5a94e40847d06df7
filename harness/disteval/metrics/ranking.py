"""How well scores separate two classes: average precision and the area under the ROC curve."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.arrays import shape_of, to_numpy
from disteval.metrics.base import BaseMetric
from disteval.metrics.exact import float64_of
from disteval.metrics.labels import check_paired, class_indices

Counts = npt.NDArray[np.int64]


class _Ranking(BaseMetric):
    """A metric of the positive and negative samples at each distinct score."""

    _name: ClassVar[str]

    def add(self, predictions: Any, labels: Any) -> None:
        """Add a batch.

        Args:
            predictions: The positive class's scores, shape (N,) or (N, 1), real numbers of any
                framework and dtype; the greater, the more positive. Integers must be from -2**53 to
                2**53.
            labels: 1 for a positive sample, 0 for a negative one; shape (N,) or (N, 1).

        Raises:
            UsageError: Shapes do not fit, a label is neither, or float64 may not hold a score.
                Nothing was added.
        """
        check_paired(predictions, labels)
        if len(shape_of(predictions)) == 2 and shape_of(predictions)[1] == 1:
            predictions = to_numpy(predictions)[:, 0]
        scores = float64_of(predictions, "predictions")
        true = class_indices(labels, 2)
        self._results.extend(zip(scores.tolist(), true.tolist(), strict=True))

    def compute_metric(self, results: list[Any]) -> dict[str, float]:
        """Compute over (score, label) of all samples, in any order.

        Raises:
            UsageError: A score is NaN, or all samples are of one class. `compute` makes it a
                `RankError` on every rank.
        """
        scores = np.array([score for score, _ in results], dtype=np.float64)
        positive = np.array([label for _, label in results], dtype=np.bool_)
        missing = int(np.isnan(scores).sum())
        if missing:
            raise UsageError(f"{missing} of {len(scores)} scores are NaN, which has no rank")
        if not positive.any() or positive.all():
            kind = "positive" if len(positive) and positive.all() else "negative"
            raise UsageError(
                f"all {len(positive)} samples are {kind}; it takes samples of both classes"
            )
        # Equal scores are one threshold; the highest comes first.
        distinct, at = np.unique(-scores, return_inverse=True)
        positives = np.bincount(at[positive], minlength=len(distinct))
        negatives = np.bincount(at[~positive], minlength=len(distinct))
        return {self._name: self._of(positives, negatives)}

    @abstractmethod
    def _of(self, positives: Counts, negatives: Counts) -> float:
        """Compute from the samples at each distinct score, the highest first."""


class AveragePrecision(_Ranking):
    """Average precision of binary targets: the mean of the precision at each positive sample.

    Precision is that among the samples scored at least as high, so equal scores share one; nothing
    is interpolated. It is scikit-learn's ``average_precision_score``.

    The result is a dict with ``average_precision``.

    Args:
        dataset_meta: See `BaseMetric`.
        dist_collect_mode: See `BaseMetric`.
        dist_backend: See `BaseMetric`.
    """

    _name = "average_precision"

    def _of(self, positives: Counts, negatives: Counts) -> float:
        found = positives.cumsum()
        precision = found / (found + negatives.cumsum())
        return math.fsum((precision * positives).tolist()) / int(found[-1])


class AUROC(_Ranking):
    """The area under the ROC curve of binary targets, correctly rounded.

    It is the chance that a positive sample is scored above a negative one, where equal scores count
    half (Mann and Whitney's U); as scikit-learn's ``roc_auc_score``.

    The result is a dict with ``auroc``.

    Args:
        dataset_meta: See `BaseMetric`.
        dist_collect_mode: See `BaseMetric`.
        dist_backend: See `BaseMetric`.
    """

    _name = "auroc"

    def _of(self, positives: Counts, negatives: Counts) -> float:
        # Twice U, so that halves are integers: of each negative, the positives above count twice.
        above = 2 * positives.cumsum() - positives
        pairs = int(positives.sum()) * int(negatives.sum())
        return int((above * negatives).sum()) / (2 * pairs)

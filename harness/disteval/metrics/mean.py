"""The mean of one number for each sample, the same float for every world size and batch size."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from disteval.arguments import check_flag
from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Floats, Numbers
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.exact import exact_mean, exact_sum, float64_of
from disteval.metrics.labels import class_indices, scores_of

ROUNDING = 1e-2  # of the sum of a row of probabilities in half precision
_LOGITS_AT_ONCE = 1 << 22  # which take 32 MiB as float64


class _ExactMean(SummableMetric):
    """The base of metrics that are the mean of a float64 column, rounded once."""

    _name: ClassVar[str]

    def sums_of(self, column: Array) -> Sums:
        """Sum exactly, see `exact_sum`."""
        return exact_sum(column)

    def from_sums(self, sums: Sums, size: int) -> dict[str, float]:
        """Divide by ``size`` and round once, see `exact_mean`."""
        return {self._name: exact_mean(sums, size)}


class Mean(_ExactMean):
    """The mean of one real number for each sample, such as its loss.

    The result is a dict with ``mean``: the float64 nearest to the true mean, in whatever order the
    values are summed. Infinities are summed as IEEE 754 defines it; NaN is an error.

    The arguments are those of `BaseMetric`.
    """

    _name = "mean"

    def add(self, values: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            values: Shape (N,) or (N, 1), real numbers of any framework and dtype. Integers must be
                from -2**53 to 2**53. Losses must not be averaged over the batch: torch's need
                ``reduction="none"``.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        self._append(float64_of(values, "values"), ids)


class CrossEntropy(_ExactMean):
    """The mean cross-entropy of logits, in nats.

    The result is a dict with ``cross_entropy``. Each sample's cross-entropy is computed in float64
    on the host, independently of the rest of its batch; the mean is that of `Mean`. As in torch, a
    label's logit of -inf gives inf, and a row that has +inf, or only -inf, gives NaN. NaN is an
    error.

    Args:
        refuse_probabilities: Whether a batch of probabilities, which give another number, is an
            error. Give False for logits each row of which happens to sum to 1.
        **common: The arguments of `BaseMetric`, by name.
    """

    _name = "cross_entropy"

    def __init__(self, *, refuse_probabilities: bool = True, **common: Any) -> None:
        super().__init__(**common)
        check_flag("refuse_probabilities", refuse_probabilities)
        self.refuse_probabilities = refuse_probabilities

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: Logits of shape (N, C), real numbers of any framework and dtype.
            labels: The true classes, shape (N,) or (N, 1); integers, or floats that hold integers.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        logits = scores_of(predictions, labels, "logits of shape (N, C) with C of 1 or more")
        true = class_indices(labels, logits.shape[1])
        if self.refuse_probabilities:
            check_logits(logits)
        self._append(cross_entropies(logits, true), ids)


def check_logits(logits: Array) -> None:
    """Raise UsageError if every row of logits, shape (N, C), holds probabilities that sum to 1."""
    if 0 in logits.shape or logits.shape[1] == 1 or logits.min() < 0 or logits.max() > 1:
        return
    off = float(abs(logits.sum(axis=1, dtype=np.float64) - 1).max())
    # A row of logits may come as near by chance; two of them hardly do.
    if off <= (ROUNDING if len(logits) > 1 else ROUNDING / 1000):
        raise UsageError(
            f"predictions must be logits, but all {len(logits)} rows of a batch are probabilities, "
            f"which sum to 1; give what softmax was given, or their logarithms; or, if they are "
            f"logits that sum to 1, give the metric refuse_probabilities=False"
        )


def cross_entropies(logits: Array, true: Numbers) -> Floats:
    """Return each row's cross-entropy, of logits of shape (N, C) and classes of shape (N,)."""
    losses = np.zeros(len(logits))
    step = max(1, _LOGITS_AT_ONCE // logits.shape[1])
    for at in range(0, len(logits), step):
        some = slice(at, at + step)
        with np.errstate(invalid="ignore", over="ignore"):
            shifted = logits[some].astype(np.float64)
            shifted -= shifted.max(axis=1, keepdims=True)
            own = np.take_along_axis(shifted, true[some, None], axis=1)[:, 0]
            losses[some] = np.log(_row_sums(np.exp(shifted))) - own
    return losses


def _row_sums(terms: Floats) -> Floats:
    """Sum each row by adding its halves, in an order that does not depend on the number of rows.

    NumPy's own order follows from the memory layout, and so from the batch.
    """
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        folded = terms[:, :half] + terms[:, half : 2 * half]
        terms = np.concatenate([folded, terms[:, 2 * half :]], axis=1)
    return terms[:, 0]

"""Errors of predicted numbers: MAE, MSE, RMSE, R2 and explained variance, from exact sums."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from disteval.metrics.arrays import Array
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.exact import exact_dot, exact_sum, float64_of, quotient
from disteval.metrics.labels import check_paired

_UNIT, _SQUARED = 1 << 1074, 1 << 2148


class Regression(SummableMetric):
    """The errors of one predicted number for each sample.

    The result is a dict:

    - ``mae``, the mean absolute error, and ``mse``, the mean squared error;
    - ``rmse``, the square root of the mean squared error;
    - ``r2``, 1 - sum((label - prediction)**2) / sum((label - mean label)**2);
    - ``explained_variance``, 1 - variance(label - prediction) / variance(label).

    The definitions are those of scikit-learn's ``mean_absolute_error`` and its neighbours. Sums of
    values, of squares and of products are exact, so nothing cancels where labels are large and
    vary little: every number is the float64 nearest to the true one, or infinite if it is too large
    for float64. If all labels are equal, ``r2`` and ``explained_variance`` are 1.0 for errors that
    are 0 (or, for ``explained_variance``, all equal) and 0.0 for others; ``r2`` of one sample is
    NaN. Infinite errors make the first three infinite and the others NaN; NaN is an error.

    Each rank sends about 1.5 kB. The arguments are those of `BaseMetric`.
    """

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: Shape (N,) or (N, 1), real numbers of any framework and dtype. Integers
                must be from -2**53 to 2**53.
            labels: The true numbers, as ``predictions``.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        check_paired(predictions, labels)
        columns = [float64_of(predictions, "predictions"), float64_of(labels, "labels")]
        self._append(np.stack(columns, axis=1), ids)

    def sums_of(self, column: Array) -> Sums:
        """Sum exactly: Python integers of shape (8,), in the order in which `from_sums` reads them.

        Values are in units of 2**-1074, products in units of 2**-2148.
        """
        finite = np.isfinite(column).all(axis=1)
        kept, odd = column[finite], column[~finite]
        with np.errstate(invalid="ignore"):
            missing = int(np.isnan(odd[:, 0] - odd[:, 1]).sum())
        # A difference may have to be rounded; the larger and the smaller value need not.
        high, low, p, t = (
            exact_sum(each)[0] for each in (kept.max(axis=1), kept.min(axis=1), *kept.T)
        )
        products = [exact_dot(*pair) for pair in combinations_with_replacement(kept.T, 2)]
        return np.array([high - low, p, t, *products, missing, len(odd) - missing], dtype=object)

    def from_sums(self, sums: Sums, size: int) -> dict[str, float]:
        """Compute each number from the sums, as a fraction that is rounded once."""
        absolute, p, t, pp, pt, tt, missing, infinite = (int(part) for part in sums)
        if missing or infinite:
            error = math.nan if missing else math.inf
            errors = dict.fromkeys(("mae", "mse", "rmse"), error)
            return errors | dict.fromkeys(("r2", "explained_variance"), math.nan)
        squared = pp - 2 * pt + tt
        spread = size * tt - t * t  # size**2 times the variance of the labels
        return {
            "mae": quotient(absolute, size * _UNIT),
            "mse": quotient(squared, size * _SQUARED),
            "rmse": _root(squared, size * _SQUARED),
            "r2": _explained(size * squared, spread) if size > 1 else math.nan,
            "explained_variance": _explained(size * squared - (p - t) ** 2, spread),
        }


def _explained(unexplained: int, spread: int) -> float:
    if spread == 0:
        return 0.0 if unexplained else 1.0
    return quotient(spread - unexplained, spread)


def _root(part: int, whole: int) -> float:
    """Return the square root of a quotient, from the first 128 bits or more of the root."""
    bits = max(0, 128 + (whole.bit_length() - part.bit_length()) // 2)
    scaled, rest = divmod(part << 2 * bits, whole)
    root = math.isqrt(scaled)
    # One bit more says whether something was cut off, so that what is above the middle of two
    # floats is rounded up.
    return quotient(2 * root + bool(rest or root * root < scaled), 2 << bits)

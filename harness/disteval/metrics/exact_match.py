"""Exact match: the fraction of samples whose whole prediction equals the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import Array, refuse_nan, sample, to_numpy
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.labels import check_paired, truths_of


class ExactMatch(SummableMetric):
    """The fraction of samples whose prediction is exactly their label.

    A sample is a text, or an array such as a sequence of tokens, all of which must be equal. The
    result is a dict with ``exact_match``, and the integers ``matches`` and ``size``.

    The arguments are those of `BaseMetric`.
    """

    def add(self, predictions: Any, labels: Any, mask: Any = None, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: Texts, as a list of N; or numbers of any framework, shape (N, …).
            labels: As ``predictions``, in the same number and shape. Texts are compared as they
                are: change case, blanks and punctuation before, where these do not count.
            mask: Which numbers of each sample count, in the shape of ``labels``: truth values, 0 or
                1. None counts all, and texts take no mask. A sample of which no number counts is a
                match.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        kinds = ["texts" if _are_texts(each) else "numbers" for each in (predictions, labels)]
        if kinds[0] != kinds[1] or (kinds[0] == "texts" and mask is not None):
            raise UsageError(
                f"predictions are {kinds[0]} and labels are {kinds[1]}, with mask "
                f"{'None' if mask is None else 'given'}; give texts for both and no mask, or "
                f"numbers for both"
            )
        if kinds[0] == "texts":
            _check_texts(predictions, "predictions")
            _check_texts(labels, "labels")
            check_paired(np.zeros(len(predictions)), np.zeros(len(labels)))
            equal = np.array([a == b for a, b in zip(predictions, labels, strict=True)], np.bool_)
            self._append(equal, ids)
            return
        found, true = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        if found.shape != true.shape or found.ndim == 0:
            raise UsageError(
                f"predictions of shape {found.shape} and labels of shape {true.shape}; both must "
                f"have one shape (N, …): fill the shorter one up"
            )
        counted = np.ones((), np.bool_) if mask is None else truths_of(mask, true.shape)
        refuse_nan("predictions", found, counted)
        refuse_nan("labels", true, counted)
        equal = (found == true) | ~counted
        self._append(equal.all(axis=tuple(range(1, equal.ndim))), ids)

    def sums_of(self, column: Array) -> Sums:
        """Count the matches: int64 of shape (1,)."""
        return np.array([np.count_nonzero(column)], dtype=np.int64)

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Divide the matches by ``size``."""
        matches = int(sums[0])
        return {"exact_match": matches / size, "matches": matches, "size": size}


def _are_texts(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind in "UT"
    return isinstance(values, Sequence) and len(values) > 0 and isinstance(values[0], str)


def _check_texts(values: Any, what: str) -> None:
    if isinstance(values, str):
        raise UsageError(f"{what} must be a list with a text for each sample, not {values!r:.100}")
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise UsageError(f"{what} must be texts, but {sample(row)} has {value!r:.100}")

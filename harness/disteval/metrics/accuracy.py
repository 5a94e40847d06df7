"""Top-k accuracy, the same number for every framework, world size and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from disteval.arguments import check_flag
from disteval.errors import UsageError
from disteval.metrics.arrays import Array, rank_labels, refuse_rows, shape_of, to_numpy
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.labels import above, check_paired, class_indices, thresholds_of, topk_of


class Accuracy(SummableMetric):
    """The fraction of samples whose label is among the k best-scored classes.

    Equal scores are ordered by class index, the lower first. Scores may be NumPy, torch, JAX or
    TensorFlow arrays and stay on their device. A few bytes for each sample come to the host, some
    batches later, so that the device does not wait for the host after each batch; a NaN on the
    device is an error then, too.

    The result is a dict with ``top{k}`` for each k. With several thresholds the keys end in
    ``_thr-0.10``, with two decimals, or in ``_no-thr``.

    Args:
        topk: One k or several, each from 1 up.
        thrs: One threshold or several. A score must be strictly greater than its threshold to be
            right; None sets no threshold, so a negative logit may be right, too. (mmeval 0.2.1
            has the default 0.) A threshold is compared in the precision of the scores; half
            precisions count as float32.
        counts: Whether the result also has the integers: ``size``, the number of samples; and the
            number of right ones for each key, under ``correct_`` and the key.
        **common: The arguments of `BaseMetric`, by name.
    """

    def __init__(
        self,
        topk: int | Sequence[int] = (1,),
        thrs: float | Sequence[float | None] | None = None,
        *,
        counts: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        check_flag("counts", counts)
        thresholds = thresholds_of(thrs)
        self.topk, self.thrs, self.counts = topk_of(topk), tuple(thresholds.values()), counts
        if not self.topk or not self.thrs:
            raise UsageError("topk and thrs must not be empty")
        self._keys = [f"top{k}{suffix}" for k, suffix in product(self.topk, thresholds)]

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: Scores of shape (N, C), real numbers of any dtype, for C of each k or more;
                or predicted labels of shape (N,), which are right for every k where they equal the
                label, and have no thresholds.
            labels: The true classes, shape (N,) or (N, 1); integers, or floats that hold integers.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        shape = shape_of(predictions, "predictions")
        if len(shape) not in (1, 2):
            raise UsageError(
                f"predictions must be scores of shape (N, C) or labels of shape (N,), not {shape}"
            )
        check_paired(predictions, labels)
        if len(shape) == 1:
            if self.thrs != (None,):
                raise UsageError(
                    f"predicted labels have no scores to compare with thrs={self.thrs}; "
                    f"give scores of shape (N, C), or thrs=None"
                )
            right = class_indices(predictions, what="predictions") == class_indices(labels)
            self._append(np.packbits([right] * len(self._keys), axis=0).T, ids)
            return
        classes = shape[1]
        if max(self.topk) > classes:
            raise UsageError(
                f"top-{max(self.topk)} accuracy needs as many classes or more, but the scores have "
                f"shape {shape}"
            )
        true = class_indices(labels, classes)
        *ranked, is_late = rank_labels(predictions, true)
        if is_late:
            self._append(lambda: self._verdicts(*ranked), ids, length=len(true))
        else:
            self._append(self._verdicts(*ranked), ids)

    def sums_of(self, column: Array) -> Sums:
        """Count the right samples for each key: int64 of shape (keys,)."""
        hits = np.unpackbits(column, axis=1, count=len(self._keys))
        return np.asarray(hits.sum(axis=0, dtype=np.int64))

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Divide the counts by ``size``."""
        correct = dict(zip(self._keys, sums.tolist(), strict=True))
        found: dict[str, Any] = {key: hits / size for key, hits in correct.items()}
        if self.counts:
            found |= {f"correct_{key}": hits for key, hits in correct.items()}
            found["size"] = size
        return found

    def _verdicts(self, ranks: Any, own: Any, missing: Any) -> Array:
        refuse_rows("predictions", to_numpy(missing))
        ranks, own = to_numpy(ranks), to_numpy(own)
        hits = [
            (ranks < k) & (True if thr is None else above(own, thr))
            for k, thr in product(self.topk, self.thrs)
        ]
        return np.packbits(np.stack(hits, axis=1), axis=1)  # a bit for each key

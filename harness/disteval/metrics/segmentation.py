"""Segmentation: the overlap of predicted and true regions, IoU and Dice, of each class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Numbers, refuse_nan, to_numpy
from disteval.metrics.base import SummableMetric, Sums
from disteval.metrics.confusion import fractions
from disteval.metrics.exact import as_counts
from disteval.metrics.labels import check_ignored, class_indices


class Segmentation(SummableMetric):
    """The overlap of predicted and true regions of C classes: IoU and Dice.

    A sample is a picture, or any array of places that each have a class. The counts are those of
    the confusion matrix over the places of all samples. The result is a dict:

    - ``iou``, float64 of shape (C,): the places that are rightly given a class, divided by those
      that have the class or are given it; NaN if there are no such places.
    - ``dice``, float64 of shape (C,): twice the places that are rightly given a class, divided by
      the sum of those that have it and those that are given it. It equals the class's F1.
    - ``mean_iou`` and ``mean_dice``: the means over the classes that are not NaN.
    - ``accuracy``: the fraction of places that are given their class.

    Places whose label is ``ignore_label`` do not count, whatever is predicted there. If it is one
    of the C classes, its own IoU and Dice are NaN; a prediction of it at another place is wrong.

    Each sample takes 24 C bytes of memory, and each rank sends as many. Scores are brought to the
    host: predict classes on the device where that takes too long.

    Args:
        num_classes: The number of classes, C, from 1 up.
        ignore_label: The label of places that do not count, any integer; None counts all places.
        **common: The arguments of `BaseMetric`, by name.
    """

    def __init__(self, num_classes: int, ignore_label: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.num_classes = check_count("num_classes", num_classes)
        self.ignore_label = check_ignored(ignore_label)

    def add(self, predictions: Any, labels: Any, *, ids: Any = None) -> None:
        """Add a batch.

        Args:
            predictions: The predicted classes, in the shape of ``labels``; or scores of shape
                (N, C, …), with the classes on axis 1. Equal scores are ordered by class, the lower
                first.
            labels: The true classes, shape (N, …), such as (N, height, width); integers of any
                framework, or floats that hold integers.
            ids: The samples' global numbers, see `BaseMetric.add`.
        """
        found, true = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        classes = self.num_classes
        counted = np.asarray(true != self.ignore_label)
        if found.shape[:1] + found.shape[2:] == true.shape and found.shape[1:2] == (classes,):
            refuse_nan("predictions", found, counted[:, None])
            found = found.argmax(axis=1)
        if found.shape != true.shape or true.ndim == 0:
            raise UsageError(
                f"predictions of shape {found.shape} and labels of shape {true.shape}; give "
                f"classes in the labels' shape, (N, …), or scores of shape (N, {classes}, …)"
            )
        rows = np.nonzero(counted)[0]
        true = class_indices(true[counted], classes, "labels that count", rows)
        found = class_indices(found[counted], classes, "predictions at labels that count", rows)
        samples = rows * classes

        def count(places: Numbers) -> Numbers:
            cells = np.bincount(places, minlength=len(counted) * classes)
            return cells.reshape(len(counted), classes)

        right = found == true
        parts = [count((samples + true)[right]), count(samples + true), count(samples + found)]
        self._append(np.stack(parts, axis=1), ids)

    def sums_of(self, column: Array) -> Sums:
        """Count the places of each class: right, true and predicted ones; int64 of shape (3, C)."""
        return np.asarray(column.sum(axis=0, dtype=np.int64))

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Compute the fractions from the counts."""
        right, true, predicted = as_counts(sums)
        if true.sum() == 0:
            raise UsageError("no place counts: every label is the ignored one, or there is none")
        either = true + predicted - right
        seen = either > 0
        if self.ignore_label is not None and 0 <= self.ignore_label < self.num_classes:
            seen[self.ignore_label] = False
        found: dict[str, Any] = {}
        for name, part, whole in (("iou", right, either), ("dice", 2 * right, true + predicted)):
            values = fractions(part, np.where(seen, whole, 0), math.nan)
            found |= {name: values, f"mean_{name}": float(values[seen].mean())}
        return found | {"accuracy": int(right.sum()) / int(true.sum())}

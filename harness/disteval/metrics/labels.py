"""Conversion of labels to class indices, of masks to truth values, and thresholds of scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_count
from disteval.errors import UsageError
from disteval.metrics.arrays import shape_of, to_numpy
from disteval.metrics.naming import refuse


def class_indices(
    labels: Any, classes: int | None = None, what: str = "labels", rows: Any = None
) -> npt.NDArray[np.int64]:
    """Turn labels of any framework and dtype into int64 of shape (N,).

    Args:
        labels: Shape (N,) or (N, 1); integers, or floats that hold integers.
        classes: The number of classes; UsageError is raised unless each label is from 0 to
            ``classes - 1``. None admits every integer that int64 can hold.
        what: The labels' name in messages.
        rows: The row of the batch that each label belongs to; None if each has one of its own.
    """
    found = to_numpy(labels, what)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise UsageError(f"{what} must have shape (N,) or (N, 1), not {found.shape}")
    with np.errstate(invalid="ignore"):  # the comparison finds what int64 can't hold
        whole = found.astype(np.int64)
    wrong = whole != found
    must, remedy = f"{what} must be whole numbers", "; int64 has to hold each"
    if classes is not None:
        wrong |= (whole < 0) | (whole >= classes)
        must, remedy = f"{must} from 0 to {classes - 1}", ""
    refuse(must, found, wrong, remedy, rows)
    return whole


def check_ignored(label: Any) -> int | None:
    """Return a label that does not count as an int, or None; UsageError if it is another value."""
    if label is None:
        return None
    if not is_count(label, -(1 << 63)):
        raise UsageError(
            f"ignore_label must be a whole number, or None to count every label, not {label!r:.200}"
        )
    return int(label)


def check_paired(predictions: Any, labels: Any) -> None:
    """Raise UsageError if there are not as many predictions as labels."""
    shapes = shape_of(predictions, "predictions"), shape_of(labels, "labels")
    if shapes[0][:1] != shapes[1][:1]:
        raise UsageError(
            f"predictions of shape {shapes[0]} and labels of shape {shapes[1]} "
            f"do not have the same number of samples"
        )


def of_shape(values: Any, shape: tuple[int, ...], what: str) -> npt.NDArray[Any]:
    """Convert an array of any framework to NumPy, or raise UsageError if its shape is another."""
    found = to_numpy(values, what)
    if found.shape != shape:
        raise UsageError(f"{what} must have shape {shape}, as the predictions, not {found.shape}")
    return found


def truths_of(values: Any, shape: tuple[int, ...], what: str = "mask") -> npt.NDArray[np.bool_]:
    """Turn truth values, 0 or 1, into bool of a shape, or raise UsageError if they are others."""
    found = of_shape(values, shape, what)
    refuse(f"{what} must be truth values, 0 or 1", found, (found != 0) & (found != 1))
    truths: npt.NDArray[np.bool_] = found != 0
    return truths


def each_of(given: Any) -> tuple[Any, ...]:
    """Return several values as a tuple, or one value as a tuple of it, as an array without axes."""
    several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    return tuple(given) if several else (given,)


def thresholds_of(thrs: float | Sequence[float | None] | None) -> tuple[float | None, ...]:
    """Return thresholds as a tuple, or raise UsageError if one is neither a number nor None."""
    found = each_of(thrs)
    for thr in found:
        if thr is not None and (isinstance(thr, bool) or not isinstance(thr, Real) or thr != thr):
            raise UsageError(f"each threshold of thrs must be a number or None, not {thr!r}")
    return found


def suffixes(thrs: Sequence[float | None]) -> list[str]:
    """Return what names of results end in; nothing if there is one threshold."""
    if len(thrs) == 1:
        return [""]
    return ["_no-thr" if thr is None else f"_thr-{thr:.2f}" for thr in thrs]


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError if two results would have one name."""
    if len(set(names)) < len(names):
        raise UsageError(f"two results would have the same name: {', '.join(names)}")


def above(scores: npt.NDArray[Any], threshold: float) -> npt.NDArray[np.bool_]:
    """Return which scores are strictly greater than a threshold, in the scores' precision.

    The threshold is rounded: 0.1 in float32 is not 0.1 in float64. Float16 counts as float32.
    """
    if scores.dtype == np.float16:
        scores = scores.astype(np.float32)
    rounded = scores.dtype.type(threshold) if scores.dtype.kind == "f" else threshold
    found: npt.NDArray[np.bool_] = scores > rounded
    return found

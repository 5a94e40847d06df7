"""Conversion of labels to class indices, of masks to truth values, and thresholds of scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from disteval.arguments import check_count, is_count
from disteval.errors import UsageError
from disteval.metrics.arrays import (
    Array,
    Mask,
    Numbers,
    column_of,
    refuse,
    refuse_nan,
    shape_of,
    to_numpy,
)


def class_indices(
    labels: Any, classes: int | None = None, what: str = "labels", rows: Any = None
) -> Numbers:
    """Turn labels of any framework and dtype into int64 of shape (N,).

    Args:
        labels: Shape (N,) or (N, 1); integers, or floats that hold integers.
        classes: The number of classes; UsageError is raised unless each label is from 0 to
            ``classes - 1``. None admits every integer that int64 can hold.
        what: The labels' name in messages.
        rows: The row of the batch that each label belongs to; None if each has one of its own.
    """
    found = column_of(labels, what)
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
    if label is not None and not is_count(label, -(1 << 63)):
        raise UsageError(
            f"ignore_label must be a whole number, or None to count every label, not {label!r:.200}"
        )
    return None if label is None else int(label)


def check_paired(predictions: Any, labels: Any) -> None:
    """Raise UsageError if there are not as many predictions as labels."""
    shapes = shape_of(predictions, "predictions"), shape_of(labels, "labels")
    if shapes[0][:1] != shapes[1][:1]:
        raise UsageError(
            f"predictions of shape {shapes[0]} and labels of shape {shapes[1]} "
            f"do not have the same number of samples"
        )


def scores_of(
    predictions: Any,
    labels: Any,
    must: str,
    ndims: Sequence[int] = (2,),
    classes: int | None = None,
) -> Array:
    """Convert predictions of any framework to NumPy.

    Args:
        predictions: An array whose first axis is that of the labels, without NaN.
        labels: The labels.
        must: What predictions must be, for the message.
        ndims: The numbers of axes that they may have.
        classes: The number of classes, on axis 1 if there is one; 0 admits any other number.
    """
    found = to_numpy(predictions, "predictions")
    counts = found.shape[1:2]
    if found.ndim not in ndims or 0 in counts or (classes and counts not in ((), (classes,))):
        raise UsageError(f"predictions must be {must}, not {found.shape}")
    check_paired(found, labels)
    refuse_nan("predictions", found)
    return found


def of_shape(values: Any, shape: tuple[int, ...], what: str) -> Array:
    """Convert an array of any framework to NumPy, or raise UsageError if its shape is another."""
    found = to_numpy(values, what)
    if found.shape != shape:
        raise UsageError(f"{what} must have shape {shape}, as the predictions, not {found.shape}")
    return found


def truths_of(values: Any, shape: tuple[int, ...], what: str = "mask") -> Mask:
    """Turn truth values, 0 or 1, into bool of a shape, or raise UsageError if they are others."""
    found = of_shape(values, shape, what)
    refuse(f"{what} must be truth values, 0 or 1", found, (found != 0) & (found != 1))
    return np.asarray(found != 0)


def topk_of(topk: Any) -> tuple[int, ...]:
    """Return one k or several as a tuple; UsageError if one is not from 1 up, or given twice."""
    found = tuple(check_count("each k of topk", k) for k in _each(topk))
    if len({*found}) < len(found):
        raise UsageError(f"topk must be different numbers, not {found}")
    return found


def thresholds_of(thrs: Any) -> dict[str, float | None]:
    """Return one threshold or several, each a number or None, by what names of results end in.

    Raises:
        UsageError: One is of another kind, or two would have one name.
    """
    found = _each(thrs)
    for thr in found:
        if thr is not None and (isinstance(thr, bool) or not isinstance(thr, Real) or thr != thr):
            raise UsageError(f"each threshold of thrs must be a number or None, not {thr!r}")
    if len(found) == 1:
        return {"": found[0]}
    named = {"_no-thr" if thr is None else f"_thr-{thr:.2f}": thr for thr in found}
    if len(named) < len(found):
        raise UsageError(f"thrs must differ in the two decimals that results name, not {found}")
    return named


def _each(given: Any) -> tuple[Any, ...]:
    """Return several values as a tuple, or one value as a tuple of it, as an array without axes."""
    several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    return tuple(given) if several else (given,)


def above(scores: Array, threshold: float) -> Mask:
    """Return which scores are strictly greater than a threshold, in the scores' precision.

    The threshold is rounded: 0.1 in float32 is not 0.1 in float64. Float16 counts as float32.
    """
    if scores.dtype == np.float16:
        scores = scores.astype(np.float32)
    rounded = scores.dtype.type(threshold) if scores.dtype.kind == "f" else threshold
    return np.asarray(scores > rounded)

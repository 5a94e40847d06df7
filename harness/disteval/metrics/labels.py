"""Conversion of labels to class indices, and of masks to truth values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_count
from disteval.errors import UsageError
from disteval.metrics.arrays import shape_of, to_numpy
from disteval.metrics.naming import sample


def class_indices(
    labels: Any, classes: int | None = None, what: str = "labels", rows: Any = None
) -> npt.NDArray[np.int64]:
    """Turn labels of any framework and dtype into int64 of shape (N,).

    Args:
        labels: Shape (N,) or (N, 1); integers, or floats that hold integers.
        classes: The number of classes; each label must be from 0 to ``classes - 1``. None admits
            every integer that int64 can hold.
        what: The labels' name in messages.
        rows: The row of the batch that each label belongs to; None if each has one of its own.

    Raises:
        UsageError: The shape is not one of these, or a label is not a class.
    """
    found = to_numpy(labels, what)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise UsageError(f"{what} must have shape (N,) or (N, 1), not {found.shape}")
    with np.errstate(invalid="ignore"):  # the comparison finds what int64 can't hold
        whole = found.astype(np.int64)
    wrong = whole != found
    allowed, remedy = "", "; int64 has to hold each"
    if classes is not None:
        wrong |= (whole < 0) | (whole >= classes)
        allowed, remedy = f" from 0 to {classes - 1}", ""
    if wrong.any():
        first = int(wrong.argmax())
        where = sample(first if rows is None else int(rows[first]))
        raise UsageError(
            f"{what} must be whole numbers{allowed}, but {where} has {found[first]}{remedy}"
        )
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
    """Turn truth values of any framework, or 0 and 1, into bool of a shape.

    Raises:
        UsageError: The shape is another, or a value is neither 0 nor 1.
    """
    found = of_shape(values, shape, what)
    wrong = (found != 0) & (found != 1)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise UsageError(
            f"{what} must be truth values, 0 or 1, but {sample(row)} has {found[wrong][0]}"
        )
    truths: npt.NDArray[np.bool_] = found != 0
    return truths

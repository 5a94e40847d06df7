"""The classes of samples, in whichever form they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.arrays import shape_of, to_numpy


def class_indices(
    labels: Any, classes: int | None = None, what: str = "labels"
) -> npt.NDArray[np.int64]:
    """Turn labels of any framework and dtype into int64 of shape (N,).

    Args:
        labels: Shape (N,) or (N, 1); integers, or floats that hold integers.
        classes: The number of classes: each label is from 0 to ``classes - 1``. None takes every
            integer that int64 holds.
        what: What they are called in messages.

    Raises:
        UsageError: They have another shape, or one is no class; names the sample.
    """
    found = to_numpy(labels)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise UsageError(f"{what} must have shape (N,) or (N, 1), not {found.shape}")
    with np.errstate(invalid="ignore"):  # what int64 does not hold is found by comparing
        whole = found.astype(np.int64)
    wrong = whole != found
    allowed, remedy = "", "; int64 has to hold each"
    if classes is not None:
        wrong |= (whole < 0) | (whole >= classes)
        allowed, remedy = f" from 0 to {classes - 1}", ""
    if wrong.any():
        first = wrong.argmax()
        raise UsageError(
            f"{what} must be whole numbers{allowed}, but sample {first} has {found[first]}{remedy}"
        )
    return whole


def check_paired(predictions: Any, labels: Any) -> None:
    """Refuse predictions and labels of different numbers of samples."""
    shapes = shape_of(predictions), shape_of(labels)
    if shapes[0][:1] != shapes[1][:1]:
        raise UsageError(
            f"predictions of shape {shapes[0]} and labels of shape {shapes[1]} "
            f"do not have the same number of samples"
        )

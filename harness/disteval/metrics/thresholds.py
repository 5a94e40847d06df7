"""Thresholds of scores, and the names of results that have several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError


def each_of(given: Any) -> tuple[Any, ...]:
    """Return several values as a tuple, or one value as a tuple of it, as an array without axes."""
    several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    return tuple(given) if several else (given,)


def thresholds_of(thrs: float | Sequence[float | None] | None) -> tuple[float | None, ...]:
    """Return one threshold or several as a tuple.

    Raises:
        UsageError: A threshold is neither a number nor None.
    """
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

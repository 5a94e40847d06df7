"""Exact sums of floats: Python integers, which add and subtract to the last bit in any order.

The method is Kulisch's long accumulator: a fixed-point number wide enough for any sum of float64
(U. Kulisch, "Computer Arithmetic and Validity", 2008). The integer counts units of 2**-1074, the
smallest positive float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.arrays import to_numpy
from disteval.metrics.summable import Sums

_CHUNK = 1 << 20
"""Values at a time: this many 27-bit halves sum to less than 2**53, so float64 holds every sum."""

_HALF = 26
_UNITS = 1074
_EXACT = 2**53


def float64_of(values: Any, what: str) -> npt.NDArray[np.float64]:
    """Copy numbers of any framework, one a sample, to the host as float64, without rounding any.

    Args:
        values: Shape (N,); float16, bfloat16, float32, float64, integers or truth values.
        what: What they are called in messages.

    Raises:
        UsageError: They have another shape, are no real numbers, or float64 may not hold them.
    """
    found = to_numpy(values)
    if found.ndim != 1:
        raise UsageError(f"{what} must have shape (N,), one a sample, not {found.shape}")
    if found.dtype.kind == "f" and found.dtype.itemsize > 8:
        raise UsageError(f"{what} of {found.dtype} do not fit float64; round them to it first")
    if found.dtype.kind in "iu":
        wrong = np.flatnonzero((found > _EXACT) | (found < -_EXACT))
        if len(wrong):
            raise UsageError(
                f"{what} must be integers from -2**53 to 2**53, all of which float64 holds, "
                f"but sample {wrong[0]} has {found[wrong[0]]}; round them to float64 first"
            )
    return found.astype(np.float64)


def exact_sum(values: npt.NDArray[Any]) -> Sums:
    """Sum floats without rounding.

    Args:
        values: Any shape; converted to float64, which rounds no float16 or float32.

    Returns:
        Python integers, shape (4,) and dtype object: the sum of the finite values in units of
        2**-1074; and how many are NaN, positive infinity and negative infinity. These of parts add
        up to those of the whole.
    """
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    finite = np.isfinite(flat)
    special = flat[~finite]
    kinds = (np.isnan(special), special == math.inf, special == -math.inf)
    flat = flat[finite]
    total = sum(_chunk_sum(flat[at : at + _CHUNK]) for at in range(0, len(flat), _CHUNK))
    # In units of 2**-1126, of which every float64, and so every sum, has a multiple of 2**52.
    return np.array([total >> 52, *(int(np.count_nonzero(kind)) for kind in kinds)], dtype=object)


def exact_mean(sums: Sums, size: int) -> float:
    """Divide what `exact_sum` returned by the number of values, and round once.

    Args:
        sums: The sums over all values.
        size: How many they are, 1 or more.

    Returns:
        The float64 nearest to the mean; a zero is positive. With a NaN, or infinities of both
        signs, NaN; with infinities of one sign, that infinity.
    """
    total, nans, positive, negative = (int(part) for part in sums)
    if nans or (positive and negative):
        return math.nan
    if positive or negative:
        return math.inf if positive else -math.inf
    # Python rounds a quotient of integers once; a mean is no larger than the largest value, so it
    # can't overflow, though the sum may.
    return total / (size << _UNITS)


def _chunk_sum(chunk: npt.NDArray[np.float64]) -> int:
    """Sum up to `_CHUNK` finite values, in units of 2**-1126."""
    fractions, exponents = np.frexp(chunk)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    bins = exponents + (_UNITS - 1)  # from 0, of the smallest subnormal
    high = np.bincount(bins, weights=mantissas >> _HALF)
    low = np.bincount(bins, weights=mantissas & ((1 << _HALF) - 1))
    used = np.flatnonzero((high != 0) | (low != 0)).tolist()
    return sum(((int(high[at]) << _HALF) + int(low[at])) << at for at in used)

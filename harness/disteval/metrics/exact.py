"""Exact sums of floats, as Python integers: adding them in any order gives the same sum.

The method is Kulisch's long accumulator: a fixed-point number wide enough for any sum of float64
(U. Kulisch, "Computer Arithmetic and Validity", 2008). The integer counts units of 2**-1074, the
smallest positive float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Floats, Numbers, column_of, refuse, refuse_nan
from disteval.metrics.base import Sums

_CHUNK = 1 << 20
"""Values summed at a time: float64 holds the sum of this many integers of 32 bits exactly."""

_HALF = 26
_LOW = (1 << _HALF) - 1
_UNITS = 1074
_EXACT = 2**53


def float64_of(values: Any, what: str) -> Floats:
    """Copy numbers of any framework to the host as float64, without rounding any.

    Args:
        values: Shape (N,) or (N, 1); floats of 64 bits or less, integers or truth values.
        what: The values' name in messages.

    Raises:
        UsageError: The shape is another, a value is NaN, or float64 can't hold it exactly.
    """
    found = column_of(values, what)
    if found.dtype.kind == "f" and found.dtype.itemsize > 8:
        raise UsageError(f"{what} of {found.dtype} do not fit float64; round them to it first")
    if found.dtype.kind in "iu":
        must = f"{what} must be integers from -2**53 to 2**53, all of which float64 holds"
        wrong = (found > _EXACT) | (found < -_EXACT)
        refuse(must, found, wrong, "; round them to float64 first")
    refuse_nan(what, found)
    return found.astype(np.float64)


def exact_sum(values: Array) -> Sums:
    """Sum floats without rounding.

    Args:
        values: Any shape; converted to float64, which rounds no float16 or float32.

    Returns:
        Python integers, shape (4,) and dtype object: the sum of the finite values in units of
        2**-1074; and the numbers of NaN, positive infinities and negative infinities. The sums of
        parts add up to those of the whole.
    """
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    finite = np.isfinite(flat)
    special = flat[~finite]
    kinds = (np.isnan(special), special == math.inf, special == -math.inf)
    flat = flat[finite]
    total = sum(_binned(*_parts(flat[at : at + _CHUNK])) for at in range(0, len(flat), _CHUNK))
    # In units of 2**-1126, of which every float64, and so every sum, has a multiple of 2**52.
    return np.array([total >> 52, *(int(np.count_nonzero(kind)) for kind in kinds)], dtype=object)


def exact_mean(sums: Sums, size: int) -> float:
    """Divide the result of `exact_sum` by the number of values, 1 or more, and round once.

    The result is the float64 nearest to the mean; a zero is positive. It is NaN if there is a NaN
    or infinities of both signs, and an infinity if all infinities have its sign.
    """
    total, nans, positive, negative = (int(part) for part in sums)
    if nans or (positive and negative):
        return math.nan
    if positive or negative:
        return math.inf if positive else -math.inf
    return quotient(total, size << _UNITS)


def quotient(part: int, whole: int) -> float:
    """Divide and round once, to an infinity if float64 can't hold the quotient."""
    try:
        return part / whole
    except OverflowError:
        return math.inf if part > 0 else -math.inf


def as_counts(sums: Sums) -> Sums:
    """Return counts from 0 up as int64; as Python integers where their sum is too large for it."""
    fits = sums.dtype != object or sum(sums.reshape(-1).tolist()) < 1 << 62
    return sums.astype(np.int64) if fits else sums


def exact_dot(xs: Floats, ys: Floats) -> int:
    """Sum the products of finite values of shape (N,) without rounding, in units of 2**-2148."""
    total = 0
    for at in range(0, len(xs), _CHUNK):
        (x, x_bins), (y, y_bins) = (_parts(each[at : at + _CHUNK]) for each in (xs, ys))
        bins = x_bins + y_bins
        x_high, x_low, y_high, y_low = x >> _HALF, x & _LOW, y >> _HALF, y & _LOW
        total += _binned(x_high * y_high, bins) << 2 * _HALF
        total += _binned(x_high * y_low + x_low * y_high, bins) << _HALF
        total += _binned(x_low * y_low, bins)
    return total >> 2 * 52


def _parts(values: Floats) -> tuple[Any, Any]:
    """Return integers of 53 bits, and exponents from 0 up: units of 2**-1126 times 2**exponent."""
    fractions, exponents = np.frexp(values)
    # The exponent is 0 for the smallest subnormal.
    return np.ldexp(fractions, 53).astype(np.int64), exponents + (_UNITS - 1)


def _binned(integers: Numbers, bins: Array) -> int:
    """Sum up to `_CHUNK` integers of 55 bits or less, each times 2 to the power of its bin."""
    high = np.bincount(bins, weights=integers >> _HALF)
    low = np.bincount(bins, weights=integers & _LOW)
    used = np.flatnonzero((high != 0) | (low != 0)).tolist()
    return sum(((int(high[at]) << _HALF) + int(low[at])) << at for at in used)

"""Confidence intervals of any metric that follows from sums, by the bootstrap."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.coverage import GAMMA, mix
from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Floats, Numbers
from disteval.metrics.base import Rows, SummableMetric, Sums
from disteval.metrics.wrapper import Wrapper, row_sums

_TIMES = np.repeat(np.arange(9, dtype=np.uint8), (24109, 24109, 12056, 4018, 1005, 200, 33, 5, 1))
"""How often a sample is in a resample, by 16 random bits: the Poisson distribution with mean 1 in
units of 2**-16, whose mean and variance are exactly 1."""

_BLOCK = 256  # rows, so that the numbers of a block take 2 MiB at 1000 resamples
_LIMB = 32  # bits; float64 holds the sum of a block's products of limbs and numbers up to 8
_MOST_SUMS = 1 << 24


class Bootstrap(Wrapper):
    """A metric with confidence intervals, which are the same at any world size and order.

    Each real number of the metric's result becomes a dict: ``value``, the metric's own result;
    ``low`` and ``high``, the ends of the percentile interval (B. Efron, "Bootstrap methods: another
    look at the jackknife", 1979). Of arrays, all three are arrays. Counts stay as they are.

    A resample has each sample 0, 1 or more times, by a Poisson distribution with mean 1, as suits
    samples that are spread over ranks (J. Hanley and B. MacGibbon, "Creating non-parametric
    bootstrap samples using Poisson frequencies", 2006; N. Chamandy et al., "Estimating uncertainty
    for massive data streams", 2012). The number follows from the seed, the resample and the
    sample's id alone, by SplitMix64. All rows of a sample (`SampleRows`) are resampled together.

    With B results of resamples and k = floor(B (1 - confidence) / 2), the interval is from the k-th
    smallest result, counted from 0, to the k-th largest. Resamples for which the result is NaN or
    is not defined, as one without any sample, are left out. Intervals of few samples, or of
    extremes, are too narrow, as with any bootstrap.

    Memory and what a rank sends are ``resamples`` times the metric's sums.

    Args:
        metric: The metric, such as ``Accuracy()`` or ``Weighted(Accuracy())``; it must be a
            `SummableMetric`, and is copied.
        resamples: The number of resamples, from 1 up.
        confidence: The fraction of resamples between the ends of the interval.
        seed: A whole number from 0 up, which decides the resamples.
    """

    _order = 2

    def __init__(
        self,
        metric: SummableMetric,
        *,
        resamples: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.resamples = check_count("resamples", resamples)
        self.seed = check_count("seed", seed, 0, 2**63 - 1)
        if not (isinstance(confidence, Real) and 0 < confidence < 1):
            raise UsageError(f"confidence must be a number between 0 and 1, not {confidence!r}")
        super().__init__(metric)
        self.uses_ids = True
        self.confidence: float = float(confidence)
        # Every four resamples share one number of 64 bits.
        streams = np.arange(-(-self.resamples // 4), dtype=np.uint64)
        start = mix(np.array([self.seed], np.uint64))
        self._streams: Array = start + np.uint64(GAMMA) * streams

    def add(self, *args: Any, ids: Any = None, **kwargs: Any) -> None:
        """Add a batch.

        Args:
            *args: The arguments of the metric's ``add``.
            ids: The samples' global numbers, see `BaseMetric.add`; they must be given.
            **kwargs: More arguments of the metric's ``add``.
        """
        if ids is None:
            raise UsageError(
                "Bootstrap got a batch without ids, by which it decides the resamples; give add "
                "the number of each sample in the data set as ids"
            )
        self._add_with("ids", None, ids, args, kwargs)

    def sums_of(self, column: Rows) -> Sums:
        """Sum exactly, over all rows and over each resample.

        The shape is (resamples + 1, n + 1, …) where that of the metric's sums is (n, …). The last
        part on axis 1 repeats the number of rows.
        """
        rows, ids = column["row"], column["value"]
        first = self.metric.sums_of(rows[:1])
        if first.size * self.resamples > _MOST_SUMS:
            raise UsageError(
                f"{self.resamples} resamples of {first.size} sums are more than "
                f"{_MOST_SUMS} numbers; give Bootstrap fewer resamples"
            )
        kind = object if first.dtype == object else np.int64
        sums = np.zeros((self.resamples + 1, first.size), kind)
        counts = np.zeros((self.resamples + 1, 1), kind)
        for at in range(0, len(column), _BLOCK):
            some = slice(at, at + _BLOCK)
            times = self._times(ids[some])
            single = row_sums(self.metric, rows[some])
            sums[:, single.places] += _products(single.values, single.of_row, times).astype(kind)
            counts[:, 0] += times.sum(axis=0).astype(np.int64)
        sums = sums.reshape(-1, *first.shape)
        whole = np.broadcast_to(counts.reshape(-1, *[1] * first.ndim), sums[:, :1].shape)
        return np.concatenate([sums, whole], axis=1)

    def from_sums(self, sums: Sums, size: int) -> Any:
        """Compute the metric's result, and its intervals from the results of the resamples."""
        value = self.metric.from_sums(sums[0, :-1], size)
        others = []
        for each in sums[1:]:
            count = int(each[-1:].flat[0])
            try:
                others += [self.metric.from_sums(each[:-1], count)] if count else []
            except UsageError:  # as of a resample in which all weights are 0
                continue
        return _with_intervals(value, others, self.confidence)

    def _times(self, ids: Numbers) -> Floats:
        """Return how often each sample is in the data set, and in each resample: (N, B + 1)."""
        bits = mix(mix(ids.astype(np.uint64))[:, None] + self._streams)
        drawn = _TIMES[bits.astype("<u8", copy=False).view("<u2")]
        times = np.ones((len(ids), self.resamples + 1))
        times[:, 1:] = drawn[:, : self.resamples]
        return times


def _products(values: Array, of_row: Any, times: Any) -> Array:
    """Multiply integers by numbers of times, and sum over rows without rounding.

    Args:
        values: The sums of distinct rows, integers of shape (D, U).
        of_row: Which of these each row has, shape (N,) with N of `_BLOCK` or less.
        times: How often each row counts, float64 of shape (N, B).

    Returns:
        Python integers of shape (B, U), or int64.
    """
    if values.dtype != object and (values >> _LIMB == 0).all():
        narrow: Array = times.T @ values.astype(np.float64)[of_row]
        return narrow.astype(np.int64)
    flat = [int(value) for value in values.reshape(-1)]
    limbs = max((value.bit_length() for value in flat), default=0) // _LIMB + 1
    size = limbs * _LIMB // 8
    texts = b"".join(abs(value).to_bytes(size, "little") for value in flat)
    signs = np.array([-1.0 if value < 0 else 1.0 for value in flat])
    parts = np.frombuffer(texts, "<u4").reshape(-1, limbs) * signs[:, None]
    parts = parts.reshape(len(values), -1)
    used = np.flatnonzero(parts.any(axis=0))
    found = np.zeros((times.shape[1], values.shape[1]), dtype=object)
    products = (times.T @ parts[:, used][of_row]).astype(np.int64).astype(object)
    for at, product in zip(used.tolist(), products.T, strict=True):
        found[:, at // limbs] += product << (at % limbs * _LIMB)
    return found


def _with_intervals(value: Any, others: list[Any], confidence: float) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _with_intervals(each, [other[key] for other in others], confidence)
            for key, each in value.items()
        }
    is_real = isinstance(value, float | np.floating | np.ndarray)
    if not is_real or np.asarray(value).dtype.kind != "f":
        return value
    shape = np.shape(value)
    results = np.array(others, np.float64).reshape(len(others), *shape)
    # NaN, of which there is one or more, is sorted behind all numbers.
    results = np.sort(np.concatenate([results, np.full((1, *shape), np.nan)]), axis=0)
    numbers = np.count_nonzero(~np.isnan(results), axis=0, keepdims=True)
    outside = (numbers * (1 - confidence) / 2 + 1e-9).astype(int)  # which rounding may not lower
    low, high = (
        np.take_along_axis(results, at, axis=0)[0] for at in (outside, numbers - 1 - outside)
    )
    if not isinstance(value, np.ndarray):
        low, high = float(low), float(high)
    return {"value": value, "low": low, "high": high}

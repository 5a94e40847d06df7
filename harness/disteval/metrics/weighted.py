"""Any metric that follows from sums, over samples that count by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from disteval.errors import UsageError
from disteval.metrics.arrays import Array, Floats, refuse
from disteval.metrics.base import Rows, Sums
from disteval.metrics.exact import float64_of, quotient
from disteval.metrics.wrapper import Wrapper, row_sums

_RANGE = 256
_BITS = 53
_UNIT = _RANGE + _BITS
"""Weights are whole numbers of 2**-309, of which every weight that is allowed is a multiple."""


class Weighted(Wrapper):
    """A metric over samples each of which counts as often as its weight says.

    A weight is a float64, which is an exact fraction; so the result is what the metric gives for a
    data set in which each sample is repeated in proportion to its weight, to the last bit, at any
    world size, batch size and order. It agrees with scikit-learn's ``sample_weight``. Counts, which
    are whole numbers without weights, become sums of weights, as floats. A sample of weight 0 does
    not count. Each of the metric's sums becomes two Python integers, which is slow for a confusion
    matrix of many classes.

    A result that is neither a count nor unchanged when every sample is repeated equally often, such
    as a variance with n - 1, depends on how many samples there are. Weights do not say that, and
    the result is refused by its name.

    Args:
        metric: The metric, such as ``Accuracy()``; it must be a `SummableMetric` and no wrapper,
            and is copied.
    """

    _order = 1

    def add(self, *args: Any, weights: Any, ids: Any = None, **kwargs: Any) -> None:
        """Add a batch.

        Args:
            *args: The arguments of the metric's ``add``.
            weights: The weight of each sample, shape (N,); real numbers of any framework: 0, or
                from 2**-256 to 2**256, which is about 1e77. With `SampleRows` as ids, one for each
                of these samples.
            ids: The samples' global numbers, see `BaseMetric.add`.
            **kwargs: More arguments of the metric's ``add``.
        """
        found = float64_of(weights, "weights")
        wrong = ~((found == 0) | ((found >= 2.0**-_RANGE) & (found <= 2.0**_RANGE)))
        must = "weights must be 0, or from 2**-256 to 2**256 (about 1e77)"
        refuse(must, found, wrong, "; scale or mend the weights")
        self._add_with("weights", found, ids, args, kwargs)

    def sums_of(self, column: Rows) -> Sums:
        """Sum exactly: the metric's sums with weights, and without; and the sum of the weights.

        They are Python integers, one part after another on axis 0; the last part repeats the sum of
        the weights. Weights are in units of 2**-309.
        """
        rows, weights = column["row"], _units(column["value"])
        plain = self.metric.sums_of(rows)
        single = row_sums(self.metric, rows)
        total = np.zeros(len(single.values), dtype=object)
        np.add.at(total, single.of_row, weights)
        weighted = np.zeros(plain.size, dtype=object)
        weighted[single.places] = total @ single.values.astype(object)
        whole = np.full_like(plain[:1], weights.sum(), dtype=object)
        parts = [weighted.reshape(plain.shape), plain.astype(object), whole]
        return np.concatenate(parts)

    def from_sums(self, sums: Sums, size: int) -> Any:
        """Compute the metric's result from its weighted sums."""
        length = len(sums) // 2
        weighted, plain, total = sums[:length], sums[length:-1], int(sums[-1:].flat[0])
        if total == 0:
            raise UsageError(f"all weights of {size} samples are 0; at least one must be greater")
        name = type(self.metric).__name__
        try:
            found = self.metric.from_sums(weighted, total)
            # A result of one sample may be NaN, as R2 is, and then it is with any weight.
            values = found if size > 1 else self.metric.from_sums(plain, 1)
        except OverflowError as error:
            raise UsageError(
                f"{name} can't be weighted: {name}.from_sums can't compute with sums of weights, "
                f"which are integers beyond int64 ({error}); let it use Python's integers"
            ) from error
        twice, often = (self.metric.from_sums(plain * n, size * n) for n in (2, 4))
        return _weighted(name, values, found, twice, often)


def _units(weights: Floats) -> Array:
    """Return weights as Python integers, in units of 2**-309."""
    fractions, exponents = np.frexp(weights)
    whole = np.ldexp(fractions, _BITS).astype(np.int64).tolist()
    shifts = (exponents + (_UNIT - _BITS)).tolist()
    # The exponent of 0 is 0.
    return np.array([n << at for n, at in zip(whole, shifts, strict=True)], dtype=object)


def _weighted(name: str, value: Any, counted: Any, twice: Any, often: Any) -> Any:
    """Return a metric's result with its counts in units of 1.

    Args:
        name: The result's name in messages.
        value: The result where it is no count.
        counted: The result where it is a count, in units of 2**-309.
        twice: The result without weights if there were twice as many of each sample.
        often: The same if there were four times as many.
    """
    if isinstance(value, Mapping):
        each = (value, counted, twice, often)
        return {key: _weighted(f"{name}[{key!r}]", *(part[key] for part in each)) for key in value}
    is_number = isinstance(twice, int | float | np.number | np.ndarray)
    kind = np.asarray(twice).dtype.kind if is_number else "text"
    if kind in "iuO" and np.array_equal(np.multiply(twice, 2), often):
        units = np.array([quotient(int(count), 1 << _UNIT) for count in np.ravel(counted)])
        return units.reshape(counted.shape) if isinstance(counted, np.ndarray) else float(units[0])
    if kind == "f":
        same = np.allclose(twice, often, rtol=1e-9, atol=0, equal_nan=True)
    else:
        same = bool(np.all(twice == often))
    if not same:
        raise UsageError(
            f"{name} can't be weighted: it is no count, and changes from {twice} to {often} if "
            f"there are twice as many of each sample; compute it without weights"
        )
    return value

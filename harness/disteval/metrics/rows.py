"""The rows that a summable metric keeps of one rank's samples, and their exact sums."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.metrics.ids import Numbers

Rows = npt.NDArray[Any]

Sums = npt.NDArray[Any]
"""Exact sums: an array of int64, or of Python integers (dtype object) where int64 is too small."""

SumsOf = Callable[[Rows], Sums]
"""Sums rows exactly, see `SummableMetric.sums_of`."""

Bring = Callable[[], Rows]
"""Waits for rows that a device is computing, and returns them."""

_FEW = 16
"""Sums up to this number travel as integers, which take fewer bytes than an array."""

_PENDING = 4
"""The most batches whose rows may still be on a device, which bounds the memory they take there."""


class Column:
    """The rows of one rank's samples, and their sums so far; or the sums alone.

    Methods that may have to sum rows take the function that does it. If the column kept it, the
    metric and the column would refer to each other, and their memory would not be freed at once.

    Args:
        keep_rows: Whether rows are kept, so that some can be dropped again. The memory of a column
            of sums alone does not grow.
    """

    def __init__(self, keep_rows: bool = True) -> None:
        self.keeps_rows = keep_rows
        self._chunks: list[Rows] = []
        self._length = 0
        self._sums: Sums | None = None
        self._pending: deque[tuple[int, Bring]] = deque()

    def __len__(self) -> int:
        if not self._pending:
            return self._length
        return self._length + sum(length for length, _ in self._pending)

    def append(self, rows: Rows, sums_of: SumsOf) -> None:
        """Add rows, after those that are pending."""
        self._settle(sums_of)
        self._append(rows, sums_of)

    def append_later(self, length: int, bring: Bring, sums_of: SumsOf) -> None:
        """Add ``length`` rows that ``bring`` returns; the oldest pending rows are brought first."""
        self._settle(sums_of, _PENDING - 1)
        self._pending.append((length, bring))

    def sums(self, keep: int | npt.NDArray[np.bool_], sums_of: SumsOf) -> Sums | None:
        """Sum the rows to keep, or subtract the sums of the others if these are fewer.

        Args:
            keep: The number of rows to keep from the beginning, or whether to keep each row.
            sums_of: Sums rows exactly.

        Returns:
            The sums; None if no row is kept.
        """
        self._settle(sums_of)
        count = int(np.count_nonzero(keep)) if isinstance(keep, np.ndarray) else keep
        if count == 0 or self._sums is None:
            return None
        if count == self._length:
            return self._sums
        rows, first = self._all(), not isinstance(keep, np.ndarray)
        if count > self._length // 2:
            return self._sums - sums_of(rows[keep:] if first else rows[~keep])
        return sums_of(rows[:keep] if first else rows[keep])

    def rows(self) -> Rows:
        """Return all rows, which are kept; none may be pending, as after `sums`."""
        return self._all()

    def values(self, lengths: Numbers, samples: Numbers) -> list[Any]:
        """Return one value for each of some samples, by which repeats of a sample are compared.

        It is the list of its rows. No rows may be pending, as after `sums`.

        Args:
            lengths: The number of rows of each sample.
            samples: The positions of the samples.
        """
        rows = self._all()
        ends = np.cumsum(lengths)
        return [rows[ends[i] - lengths[i] : ends[i]].tolist() for i in samples]

    def _settle(self, sums_of: SumsOf, most: int = 0) -> None:
        """Bring pending rows until no more than ``most`` batches are pending."""
        while len(self._pending) > most:
            self._append(self._pending[0][1](), sums_of)
            # Not before: rows that can't be had must fail again, instead of being forgotten.
            self._pending.popleft()

    def _append(self, rows: Rows, sums_of: SumsOf) -> None:
        if len(rows):
            sums = sums_of(rows)
            if self.keeps_rows:
                self._chunks.append(np.array(rows))  # a copy: the caller may reuse the memory
            self._length += len(rows)
            self._sums = add_sums(self._sums, sums)

    def _all(self) -> Rows:
        if self._length and not self.keeps_rows:
            raise UsageError(
                "samples can't be dropped from a metric that disteval.evaluate computed, which "
                "keeps their sums alone; reset the metric, and add the samples again"
            )
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks)] if self._chunks else [np.zeros(0)]
        return self._chunks[0]


def sendable(sums: Sums | None) -> Sums | list[Any] | None:
    """Return sums as they travel; None stands for those of no rows.

    Raises:
        UsageError: They are no array of integers with one axis or more.
    """
    if sums is None:
        return None
    if np.ndim(sums) == 0 or sums.dtype.kind not in "iuO":
        raise UsageError(
            f"sums_of returned {getattr(sums, 'dtype', type(sums).__name__)} of shape "
            f"{np.shape(sums)}; it must return an array of integers with one axis or more, because "
            f"only integers add up to the same sum in any order"
        )
    return list(sums.tolist()) if sums.dtype.kind == "O" or sums.size <= _FEW else sums


def add_sums(one: Any, other: Any) -> Any:
    """Add the sums of two parts; None stands for those of no rows.

    Raises:
        UsageError: They have different shapes, which NumPy might broadcast.
    """
    if one is None or other is None:
        return other if one is None else one
    one, other = as_array(one), as_array(other)
    if np.shape(one) != np.shape(other):
        raise UsageError(
            f"sums of shape {np.shape(one)} and of shape {np.shape(other)} can't be added; "
            f"sums_of must return one shape for any rows, and the metrics of all ranks must have "
            f"the same settings"
        )
    return one + other


def as_array(sums: Any) -> Sums:
    """Return sums as an array, which `sendable` may have made a list of Python integers."""
    return np.array(sums, dtype=object) if isinstance(sums, list) else sums

"""The ids that one rank counted, in memory that does not grow with regular ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from disteval.coverage.proof import MASK, Certificate, mixed_sum

Ids = npt.NDArray[np.int64]

_BLOCK = 8192
"""The number of ids that are compressed at a time."""

_SHORTEST = 64
"""The fewest ids that are worth a run of their own."""


class Counted:
    """The ids that one rank counted, in the order in which they were added.

    Ids whose differences repeat, such as 0, 3, 6, 9, … or 0, 1, 6, 7, 12, 13, …, take a few bytes
    for all of them. Other ids take 1 to 8 bytes each, depending on the largest.

    Args:
        ids: The first ids.
    """

    def __init__(self, ids: Ids | None = None) -> None:
        self._parts: list[_Run | npt.NDArray[np.integer]] = []
        self._compressed = 0
        self._mixed = 0
        self._contents: int | None = 0
        self._waiting = np.empty(_BLOCK, np.int64)
        self._filled = 0
        if ids is not None:
            self.add(ids)

    def __len__(self) -> int:
        """Return how many ids were added; an id that was added twice counts twice."""
        return self._compressed + self._filled

    def add(self, ids: Ids, contents: int | None = None) -> None:
        """Add the samples of one batch.

        Args:
            ids: Their ids: int64 of shape (N,). They are copied.
            contents: The digest of what they hold, see `Certificate`.
        """
        if len(ids):
            if self._contents is not None and contents is not None:
                self._contents = (self._contents + contents) & MASK
            else:
                self._contents = None
        while len(ids):
            taken = ids[: _BLOCK - self._filled]
            end = self._filled + len(taken)
            self._waiting[self._filled : end] = taken
            self._filled = end
            if end == _BLOCK:
                self._compress()
            ids = ids[len(taken) :]

    def certificate(self) -> Certificate:
        """Return this rank's part of the proof that every sample was counted once."""
        waiting = mixed_sum(self._waiting[: self._filled])
        return Certificate(len(self), (self._mixed + waiting) & MASK, self._contents)

    def all(self) -> Ids:
        """Return all ids as one array, in the order in which they were added."""
        found = [part.ids() if isinstance(part, _Run) else part for part in self._parts]
        return np.concatenate([*found, self._waiting[: self._filled]], dtype=np.int64)

    def _compress(self) -> None:
        ids = self._waiting
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _Run):
            ids = ids[last.extend(ids) :]
        while len(ids) >= _SHORTEST:
            run = _longest_run(ids)
            if run.length < _SHORTEST:
                self._parts.append(ids.astype(_smallest_dtype(ids)))
                ids = ids[:0]
            else:
                self._parts.append(run)
                ids = ids[run.length :]
        done = self._waiting[: _BLOCK - len(ids)]
        self._compressed += len(done)
        self._mixed = (self._mixed + mixed_sum(done)) & MASK
        self._filled = len(ids)
        self._waiting[: self._filled] = ids  # they may be the beginning of a run


class _Run:
    """Consecutive ids whose differences repeat after as many ids as ``pattern`` has.

    Attributes:
        pattern: The first ids.
        shift: What is added to the pattern each time that it occurs again.
        length: The number of ids of the run.
    """

    __slots__ = ("length", "pattern", "shift")

    def __init__(self, pattern: Ids, shift: int) -> None:
        self.pattern = pattern.copy()
        self.shift = shift
        self.length = 0

    def extend(self, ids: Ids) -> int:
        """Add the first ids as far as they continue the run, and return how many do."""
        differs = self._from(self.length, len(ids)) != ids
        count = int(differs.argmax()) if differs.any() else len(ids)
        self.length += count
        return count

    def ids(self) -> Ids:
        """Return the ids of the run."""
        return self._from(0, self.length)

    def _from(self, start: int, count: int) -> Ids:
        times, position = np.divmod(np.arange(start, start + count), len(self.pattern))
        found: Ids = self.pattern[position] + self.shift * times
        return found


def _longest_run(ids: Ids) -> _Run:
    """Return a run with which the ids begin, of which there are two or more.

    The differences of ids are either all the same, or they repeat from one largest difference to
    the next, such as that between two batches of consecutive ids.
    """
    steps = np.diff(ids)
    largest = np.flatnonzero(steps == steps.max(initial=0))[:2]
    periods = {1, *np.diff(largest).tolist()}
    runs = [_Run(ids[:period], int(ids[period] - ids[0])) for period in periods]
    for run in runs:
        run.extend(ids)
    return max(runs, key=lambda run: run.length)


def _smallest_dtype(ids: Ids) -> npt.DTypeLike:
    """Return the dtype of the fewest bytes that holds the ids."""
    return np.min_scalar_type(ids.max()) if ids.min() >= 0 else np.int64

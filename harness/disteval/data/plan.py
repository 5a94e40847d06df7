"""Batches before they are read: the samples of each unit of an evaluation, and whose unit it is.

A unit is a batch of samples that have numbers. It is the same at any world size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.data.length_of import ByLength
from disteval.errors import UsageError

Indices = npt.NDArray[np.int64]

_CHUNK = 1024  # lengths become Python's numbers so many at a time


class Picked(NamedTuple):
    """The samples of one batch, before they are read.

    Attributes:
        indices: The numbers of the samples to read: int64, shape (N,) with N from 1 up.
        counted: The number of samples that count: N, or 0 in a batch that another rank counts.
        rows: The number of samples of the batch that ``predict`` gets. If it is greater than N,
            the last sample is repeated.
        unit: The unit that the batch is, or is a part of.
    """

    indices: Indices
    counted: int
    rows: int
    unit: int = 0

    @property
    def filled_up(self) -> Indices:
        """The number of the sample in each row: the last one repeated until there are ``rows``."""
        missing = self.rows - len(self.indices)
        if not missing:
            return self.indices
        return np.concatenate([self.indices, np.repeat(self.indices[-1:], missing)])


class Batch(NamedTuple):
    """One batch of samples, as the evaluation loop uses it.

    Attributes:
        ids: The global numbers of the samples that count: int64, shape (n,).
        filled: The batch for ``predict``, with padding and filling; it has ``rows`` rows.
        real: The batch of the n samples that count. It is ``filled`` if all rows count, and None
            if no row counts.
        rows: The number of samples in ``filled``.
        contents: The digest of the samples that count, see `disteval.data.contents.total`; None if
            it is not known.
        numbers: The number of the sample in each row of ``filled``: int64, shape (rows,).
        unit: The unit that the batch is, or is a part of.
        samples: The number of samples that were read for it, unless it repeats an element.
    """

    ids: Indices
    filled: Any
    real: Any
    rows: int
    contents: int | None
    numbers: Indices
    unit: int
    samples: int


def filled_rows(count: int, batch_size: int, step: int) -> int:
    """Return how many rows a batch of some samples has, with those that repeat the last sample.

    Args:
        count: The number of samples.
        batch_size: The number of samples in a full batch, which none exceeds.
        step: The number of rows of which the batch has a multiple; 1 adds no row.
    """
    return min(batch_size, -(-count // step) * step)


def batches_of(size: int, batch_size: int) -> int:
    """Return how many batches of consecutive samples a data set has."""
    return -(-size // batch_size)


def ends_of(batch: int, batch_size: int, size: int) -> tuple[int, int]:
    """Return the first sample of a batch of consecutive samples, and the one after its last."""
    begin = batch * batch_size
    return begin, min(begin + batch_size, size)


class Plan:
    """The batches of a data set: consecutive samples, or those of like lengths by falling cost.

    The cost of a batch is the number of its samples times the longest length.

    Args:
        size: The number of samples.
        batch_size: The most samples in a batch.
        step: The multiple to which the rows of a batch are filled up, see `filled_rows`.
        lengths: The length of each sample, if batches are made by them: int64, shape (size,).
        by_length: How they are made.
        done: The numbers of samples that are left out; batches are cut before they are, so that
            those of an interrupted evaluation stay as they were.
        numbers: The samples' numbers, for an error; None stands for 0, 1, 2, …

    Raises:
        UsageError: One sample alone costs more than ``max_tokens``, or batches that are made
            already do not have each sample once.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        step: int = 1,
        *,
        lengths: npt.NDArray[np.int64] | None = None,
        by_length: ByLength | None = None,
        done: Indices | None = None,
        numbers: Indices | None = None,
    ) -> None:
        self._size, self._batch_size, self._step = size, batch_size, step
        self._order: Indices | None = None  # None stands for that of the data set
        self._bounds: Indices | None = None
        # Which batch each unit is.
        self._units: Indices | range = range(batches_of(size, batch_size))
        if lengths is not None and by_length is not None:
            self._by_length(lengths, by_length, numbers)
        self._is_done: npt.NDArray[np.bool_] | None = None
        if done is not None and len(done):
            self._leave_out(done)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._units)

    def unit(self, number: int, counts: bool = True) -> Picked:
        """Return one of the batches, whose samples may count on another rank alone."""
        batch = int(self._units[number])
        if self._order is None or self._bounds is None:
            ids = np.arange(*ends_of(batch, self._batch_size, self._size), dtype=np.int64)
        else:
            ids = self._order[self._bounds[batch] : self._bounds[batch + 1]]
        if self._is_done is not None:
            ids = ids[~self._is_done[ids]]
        rows = filled_rows(len(ids), self._batch_size, self._step)
        return Picked(ids, len(ids) if counts else 0, rows, number)

    def _by_length(
        self, lengths: npt.NDArray[np.int64], by: ByLength, numbers: Indices | None
    ) -> None:
        order = np.argsort(-lengths, kind="stable") if by.sort else np.arange(len(lengths))
        if by.batches is not None:
            self._step = 1
            order, starts = _in_batches(by.batches, self._batch_size, len(lengths))
        elif by.max_tokens is not None:
            self._step = 1
            _check_budget(lengths, by.max_tokens, numbers)
            found = _starts(lengths[order], self._batch_size, by.max_tokens)
            starts = np.fromiter(found, np.int64)
        else:
            starts = np.arange(0, len(lengths), self._batch_size)
        bounds = np.append(starts, len(lengths))
        longest = np.maximum.reduceat(lengths[order], starts) if len(starts) else starts
        self._order, self._bounds = order, bounds
        self._units = np.argsort(-np.diff(bounds) * longest, kind="stable")

    def _leave_out(self, done: Indices) -> None:
        self._is_done = np.zeros(self._size, np.bool_)
        self._is_done[done] = True
        is_left, starts = ~self._is_done, np.arange(0, self._size, self._batch_size)
        if self._order is not None and self._bounds is not None:
            is_left, starts = is_left[self._order], self._bounds[:-1]
        units = np.asarray(self._units)
        self._units = units[np.logical_or.reduceat(is_left, starts)[units]]


def dealt(
    units: int | None, world_size: int, rank: int, *, even: bool = False, by_cost: bool = False
) -> Iterator[tuple[int, bool]]:
    """Yield the units that a rank evaluates, one of each round, and whether its samples count.

    Args:
        units: The number of units; None yields on and on.
        world_size: The number of ranks.
        rank: The rank.
        even: Whether every rank gets equally many: one that has a unit less gets the last one,
            whose samples do not count there.
        by_cost: Whether every second round is dealt backwards, so that of units by falling cost
            no rank has the most expensive one of every round.
    """
    for turn in count():
        place = world_size - 1 - rank if by_cost and turn % 2 else rank
        if units is not None and turn * world_size >= units:
            return
        unit = turn * world_size + place
        if units is None or unit < units:
            yield unit, True
        elif even:
            yield units - 1, False


def _check_budget(lengths: npt.NDArray[np.int64], max_tokens: int, numbers: Indices | None) -> None:
    longest = int(lengths.argmax()) if len(lengths) else 0
    if len(lengths) and lengths[longest] > max_tokens:
        number = longest if numbers is None else numbers[longest]
        raise UsageError(
            f"sample {number} has the length {lengths[longest]}, and "
            f"{int((lengths > max_tokens).sum())} of {len(lengths)} samples are longer than "
            f"max_tokens={max_tokens}; raise max_tokens, or cut the samples"
        )


def _in_batches(
    batches: Sequence[Sequence[int]], batch_size: int, size: int
) -> tuple[Indices, Indices]:
    """Return the samples of batches that are made already, and at which place each batch starts."""
    order = np.array([number for batch in batches for number in batch], np.int64)
    longest = max(map(len, batches), default=0)
    if (
        longest > batch_size
        or not all(batches)
        or not np.array_equal(np.sort(order), np.arange(size))
    ):
        raise UsageError(
            f"ByLength has {len(batches)} batches of {len(order)} samples, of which one has "
            f"{longest}; they must have each of the {size} samples once, from 1 to "
            f"batch_size={batch_size} a batch. Leave limit out, and raise batch_size"
        )
    return order, np.cumsum([0, *map(len, batches)])[:-1]


def _starts(ordered: npt.NDArray[np.int64], batch_size: int, max_tokens: int) -> Iterator[int]:
    """Yield where each batch starts, so that it holds as many samples as fit."""
    size, longest = batch_size, 0  # as if a full batch ended here
    for begin in range(0, len(ordered), _CHUNK):
        for place, length in enumerate(ordered[begin : begin + _CHUNK].tolist(), begin):
            longest = max(longest, length)
            if size == batch_size or (size + 1) * longest > max_tokens:
                yield place
                size, longest = 0, length
            size += 1

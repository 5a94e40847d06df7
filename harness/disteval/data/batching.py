"""Batches of samples: which samples each batch of a rank holds, before they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class Picked(NamedTuple):
    """The samples of one batch, before they are read.

    Attributes:
        indices: The numbers of the samples to read: int64, shape (N,) with N from 1 up. Those that
            count come first, those that are padding follow.
        counted: The number of samples that count, from 0 to N.
        rows: The number of samples of the batch that ``predict`` gets. If it is greater than N,
            the last sample is repeated.
    """

    indices: Indices
    counted: int
    rows: int

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
    """

    ids: Indices
    filled: Any
    real: Any
    rows: int
    contents: int | None = None
    numbers: Indices | None = None


class Plan(Protocol):
    """The batches of one rank, in the order in which it evaluates them.

    It can be iterated over again and again, and holds no list of its batches.

    Attributes:
        samples: The number of samples in all batches, padding included, filling not.
    """

    @property
    def samples(self) -> int: ...  # noqa: D102
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Picked]: ...
    def between(self, first: int, last: int) -> Iterator[Picked]:
        """Yield the batches from the first to the one before the last, without making others."""
        ...


def filled_rows(count: int, batch_size: int, step: int) -> int:
    """Return how many rows a batch of some samples has, with those that repeat the last sample.

    Args:
        count: The number of samples.
        batch_size: The number of samples in a full batch, which none exceeds.
        step: The number of rows of which the batch has a multiple; 1 adds no row.
    """
    return min(batch_size, -(-count // step) * step)


@dataclass(frozen=True)
class WholeBatches:
    """Whole batches of consecutive samples, which ranks take in turn.

    Rank r of W has the batches r, r + W, r + 2W, …: a batch is the same at any world size.

    Args:
        size: The number of samples in the data set.
        world_size: The number of ranks, W.
        rank: The rank whose batches these are.
        batch_size: The number of samples in a batch.
        step: The multiple to which the rows of the last batch are filled up, see `filled_rows`.
        pad: Whether every rank has equally many batches: one that has a batch less repeats the
            last one, whose samples do not count there.
    """

    size: int
    world_size: int
    rank: int
    batch_size: int
    step: int
    pad: bool = True

    @property
    def samples(self) -> int:
        """The number of samples, padding included."""
        last = self._batches - 1
        full = len(range(self.rank, last, self.world_size))
        return full * self.batch_size + (len(self) - full) * (self.size - last * self.batch_size)

    def __len__(self) -> int:
        return len(range(self.rank, self._dealt, self.world_size))

    def __iter__(self) -> Iterator[Picked]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Picked]:
        """Yield some batches, see `Plan`."""
        for number in range(self.rank, self._dealt, self.world_size)[first:last]:
            # Padding repeats the last batch, which is the smallest.
            start = min(number, self._batches - 1) * self.batch_size
            stop = min(start + self.batch_size, self.size)
            rows = filled_rows(stop - start, self.batch_size, self.step)
            counted = stop - start if number < self._batches else 0
            yield Picked(np.arange(start, stop, dtype=np.int64), counted, rows)

    @property
    def _batches(self) -> int:
        return -(-self.size // self.batch_size)

    @property
    def _dealt(self) -> int:
        batches, world = self._batches, self.world_size
        return -(-batches // world) * world if self.pad else batches

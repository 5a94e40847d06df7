"""Batches of samples: which samples each batch of a rank holds, before they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from disteval.sharding import Shard, ShardPlan

Mode = Literal["strided", "contiguous", "batches"]
"""How samples are distributed over ranks, see `plan_batches`."""

MODES: tuple[Mode, ...] = ("strided", "contiguous", "batches")

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


def plan_batches(
    size: int,
    world_size: int,
    rank: int,
    batch_size: int,
    *,
    mode: Mode = "strided",
    pad: bool = True,
    step: int | None = None,
) -> Plan:
    """Return the batches of one rank, for samples that are taken in the order of the data set.

    With ``mode="strided"`` or ``"contiguous"``, the samples of the rank's `ShardPlan` are cut into
    batches. With ``"batches"``, the data set is cut into batches of consecutive samples first, and
    rank r of W has the batches r, r + W, r + 2W, …: a batch holds the same samples at any world
    size.

    Args:
        size: The number of samples in the data set.
        world_size: The number of ranks, W.
        rank: The rank whose batches these are.
        batch_size: The number of samples in a batch.
        mode: How samples are distributed over ranks.
        pad: Whether every rank has equally many batches. In the mode ``"batches"``, a rank that
            has one batch less repeats a batch whose samples do not count.
        step: The multiple to which the rows of the last batch are filled up, see `filled_rows`;
            None stands for ``batch_size``.
    """
    step = step or batch_size
    if mode == "batches":
        return WholeBatches(size, world_size, rank, batch_size, step, pad)
    return ShardBatches(ShardPlan(size, world_size, rank, mode, pad), batch_size, step)


def filled_rows(count: int, batch_size: int, step: int) -> int:
    """Return how many rows a batch of some samples has, with those that repeat the last sample.

    Args:
        count: The number of samples.
        batch_size: The number of samples in a full batch, which none exceeds.
        step: The number of rows of which the batch has a multiple; 1 adds no row.
    """
    return min(batch_size, -(-count // step) * step)


@dataclass(frozen=True)
class ShardBatches:
    """The batches of a `ShardPlan`, whose numbers are made batch by batch."""

    shard: ShardPlan
    batch_size: int
    step: int

    @property
    def samples(self) -> int:
        """The number of samples, padding included."""
        return len(self.shard)

    def __len__(self) -> int:
        return -(-len(self.shard) // self.batch_size)

    def __iter__(self) -> Iterator[Picked]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Picked]:
        """Yield some batches, see `Plan`."""
        total, counted = len(self.shard), self.shard.num_samples
        for start in range(first * self.batch_size, last * self.batch_size, self.batch_size):
            stop = min(start + self.batch_size, total)
            rows = filled_rows(stop - start, self.batch_size, self.step)
            real = min(max(counted - start, 0), stop - start)
            yield Picked(self.shard.between(start, stop), real, rows)


@dataclass(frozen=True)
class GivenBatches:
    """The batches of a shard that holds its numbers, such as a user's own.

    Its arrays must have been checked: indices in range, padding last.
    """

    shard: Shard
    batch_size: int
    step: int

    @property
    def samples(self) -> int:
        """The number of samples, padding included."""
        return len(self.shard.indices)

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[Picked]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Picked]:
        """Yield some batches, see `Plan`."""
        for start in range(first * self.batch_size, last * self.batch_size, self.batch_size):
            indices = self.shard.indices[start : start + self.batch_size]
            padding = int(self.shard.is_padding[start : start + self.batch_size].sum())
            rows = filled_rows(len(indices), self.batch_size, self.step)
            yield Picked(indices, len(indices) - padding, rows)


@dataclass(frozen=True)
class WholeBatches:
    """Whole batches of consecutive samples, which ranks have in turn."""

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

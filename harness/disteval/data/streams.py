"""Samples without a length: each rank's share of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_count
from disteval.data.contents import SHARD_BITS, Elements, snapshots
from disteval.data.digests import digest_of
from disteval.data.length_of import ByLength
from disteval.data.shards import ShardedStream
from disteval.data.windows import Windows
from disteval.errors import HarnessError, SampleError, UsageError, describe_error

Numbered = tuple[npt.NDArray[np.int64], list[Any], list[bytes]]
"""The global numbers of some samples, int64 of shape (N,), the N samples, and their snapshots."""


class Note(NamedTuple):
    """What one rank says about the stream that it has read.

    Attributes:
        shards: The number of shards; None if the stream has none.
        names: The digest of the shards' names.
        counts: The number of elements of each part that this rank read, by the part's number.
        contents: The digest of all elements; None if no other rank reads the same ones, or where
            elements can't be compared.
    """

    shards: int | None
    names: bytes
    counts: dict[int, int]
    contents: int | None


def is_stream(samples: Any) -> bool:
    """Return whether samples are a stream, which has no length or can't be indexed.

    A function without arguments that returns an iterable is one, and every iterator, and torch's
    ``IterableDataset``, although it inherits a ``__getitem__``.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(samples, torch.utils.data.IterableDataset):
        return True
    if hasattr(samples, "__len__") and hasattr(samples, "__getitem__"):
        return False
    return hasattr(samples, "__iter__") or hasattr(samples, "__getitem__") or callable(samples)


class Turns:
    """One rank's batches of elements, of which ranks take whole batches in turn.

    Args:
        rank: The rank.
        world_size: The number of ranks that are given the same elements.
        batch_size: The number of samples in a batch.
    """

    def __init__(self, rank: int, world_size: int, batch_size: int) -> None:
        self._rank, self._world_size, self._batch_size = rank, world_size, batch_size
        self._turn = self._in_batch = 0
        self._ids: list[int] = []
        self._samples: list[Any] = []
        self._snapshots: list[bytes] = []

    def add(self, number: int, sample: Any, snapshot: bytes) -> Iterable[Numbered]:
        """Take an element, and return the batch of this rank that it completes, if any."""
        if self._turn % self._world_size == self._rank:
            self._ids.append(number)
            self._samples.append(sample)
            self._snapshots.append(snapshot)
        self._in_batch += 1
        return self.flush() if self._in_batch == self._batch_size else ()

    def flush(self) -> Iterable[Numbered]:
        """End the batch, and return what this rank has of it."""
        self._turn += self._in_batch > 0
        self._in_batch = 0
        taken = (np.array(self._ids, np.int64), self._samples, self._snapshots)
        self._ids, self._samples, self._snapshots = [], [], []
        return (taken,) if taken[1] else ()

    @property
    def most(self) -> int:
        """How many batches the rank with the most of them has, once the last batch has ended."""
        return -(-self._turn // self._world_size)


class Stream:
    """One rank's share of a stream: an iterable over batches, which can be read once.

    Each batch has the global numbers of its samples, int64 of shape (N,), the list of the N
    samples, 1 to ``batch_size`` of them, and the list of their snapshots. The global number of an
    element is its position in the stream; in a `ShardedStream`, see `SHARD_BITS`. A batch ends
    where a shard ends.

    Nothing is opened before the first batch is asked for.

    Args:
        samples: The stream, or a function that returns one.
        rank: The rank whose share this is.
        world_size: The number of ranks.
        batch_size: The number of samples in a batch.
        limit: The number of elements after which the stream counts as ended.
        by_length: Makes batches by length within windows of the stream.
        parts: The shards of a `ShardedStream` to read, all elements of each. None stands for this
            rank's share.

    Attributes:
        part: The shard that is being read.
        world_size: The number of ranks.
        most: How many batches the rank with the most of them has, at the end of a stream that every
            rank reads whole; 0 where that is not known.
        last: The number of the last element of such a stream, and the element.

    Raises:
        UsageError: A value is out of range; while it is read, a function did not return an
            iterable.
        SampleError: While it is read, when an element could not be read.
    """

    def __init__(
        self,
        samples: Any,
        rank: int,
        world_size: int,
        batch_size: int,
        limit: int | None = None,
        by_length: ByLength | None = None,
        parts: range | None = None,
    ) -> None:
        self._samples = samples
        self._rank, self.world_size = rank, world_size
        self._batch_size = check_count("batch_size", batch_size)
        self._by_length = by_length
        self._parts = parts
        self._limit = None if limit is None else check_count("limit", limit)
        self.sharded = samples if isinstance(samples, ShardedStream) else None
        self.part = self._position = 0
        self._counts: dict[int, int] = {}
        self.elements: Elements | None = None
        self.most = 0
        self.last: tuple[int, Any] = (0, None)

    @property
    def is_uneven(self) -> bool:
        """Whether other ranks read other shards, so that no rank knows how many batches they have.

        Of a function that returns shards it is known once it was called.
        """
        return self.sharded is not None and self._limit is None and self.world_size > 1

    @property
    def settings(self) -> str:
        """What ranks must agree on before they read the stream."""
        if self.sharded is None:
            return "a stream"
        names = self.sharded.shards
        digest = self._names().hex()[:8]
        return f"{len(names)} shards from {names[0]!s:.80} to {names[-1]!s:.80} (digest {digest})"

    def note(self) -> Note:
        """Return what this rank says about the stream, once it has read all of its batches."""
        shards = None if self.sharded is None else len(self.sharded.shards)
        contents = None if self.elements is None else self.elements.total()
        return Note(shards, self._names(), self._counts, contents)

    def __iter__(self) -> Iterator[Numbered]:
        """Yield this rank's batches, and read the elements of other ranks where that must be."""
        samples = _called(self._samples)
        self.sharded = samples if isinstance(samples, ShardedStream) else None
        shards = 1 if self.sharded is None else len(self.sharded.shards)
        if self.sharded is not None and self._limit is None:
            parts = self._parts or range(self._rank, shards, self.world_size)
            dealt = self._dealt(0, 1)  # of the shards that it reads, it has every element
        else:
            parts = range(shards)
            dealt = self._dealt(self._rank, self.world_size)
            self.elements = Elements() if self.world_size > 1 else None
        snapshot = snapshots()
        left = sys.maxsize if self._limit is None else self._limit
        for self.part in parts:
            self._position, first = 0, self.part << SHARD_BITS
            with self._opened(samples) as elements:
                for element in islice(elements, left):
                    number, found = first + self._position, snapshot(element)
                    if self.elements is not None:
                        self.elements.add(number, found)
                        self.last = number, element
                    yield from dealt.add(number, element, found)
                    self._position += 1
            self._counts[self.part] = self._position
            left -= self._position
            yield from dealt.flush()
            if left == 0:
                break
        if self.elements is not None and isinstance(dealt, Turns):
            self.most = dealt.most

    def _dealt(self, rank: int, world_size: int) -> Turns | Windows:
        if self._by_length is not None:
            return Windows(rank, world_size, self._batch_size, self._by_length)
        return Turns(rank, world_size, self._batch_size)

    @contextmanager
    def _opened(self, samples: Any) -> Iterator[Iterator[Any]]:
        """Open a part of the stream, name the element that fails, and close what was opened."""
        source = samples
        try:
            if self.sharded is not None:
                source = self.sharded.open(self.sharded.shards[self.part])
            yield _iterator(source, "samples" if self.sharded is None else "open")
        except HarnessError:
            raise
        except Exception as error:
            what = f"of {self._place} could not be read: {describe_error(error)}"
            raise SampleError(self._position, what) from error
        finally:
            if source is not self._samples and hasattr(source, "close"):
                source.close()

    @property
    def _place(self) -> str:
        if self.sharded is None:
            return "the stream"
        return f"the shard {str(self.sharded.shards[self.part])!r:.200}"

    def _names(self) -> bytes:
        return b"" if self.sharded is None else digest_of(self.sharded.shards)


def _called(samples: Any) -> Any:
    """Return the stream; a function is called, which returns one."""
    is_function = callable(samples) and not hasattr(type(samples), "__iter__")
    samples = samples() if is_function else samples
    if getattr(samples, "batch_sampler", None) is not None:
        raise UsageError(
            f"samples is a {type(samples).__name__}, which yields batches, and evaluate makes "
            f"batches of samples itself; give its dataset, or a DataLoader with batch_size=None"
        )
    return samples


def _iterator(source: Any, function: str) -> Iterator[Any]:
    try:
        return iter(source)
    except TypeError:
        raise UsageError(
            f"the function {function} returned a value of type {type(source).__name__}; it must "
            f"return an iterable over the elements"
        ) from None

"""Samples without a length: generators, open files, iterable data sets, and streams of shards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.arguments import check_choice, check_count
from disteval.data.digests import RunningDigest, digest_of
from disteval.data.hugging_face import count_shards
from disteval.data.windows import ByLength, Windows
from disteval.errors import HarnessError, SampleError, UsageError, describe_error

Ids = npt.NDArray[np.int64]

SHARD_BITS = 40
"""The element at position p of shard s has the global number ``(s << 40) + p``."""


class ShardedStream:
    """A stream of several parts, the shards, each of which can be opened alone.

    Each shard is read by one rank: shard s by rank s modulo the world size. So a rank without a
    shard has nothing to do, and with few shards, or shards of very different lengths, ranks wait
    for others. With ``limit``, and only then, every rank reads the shards from the first one on.

    Args:
        shards: The name of each shard, such as a path or an address; the same on every rank, in the
            same order.
        open: A function of one name, which returns an iterable over the elements of that shard, the
            same ones whichever rank calls it. If the iterable has ``close``, it is called.

    Raises:
        UsageError: There is no shard, a name occurs twice, or ``open`` is not a function.
    """

    def __init__(self, shards: Iterable[Any], open: Callable[[Any], Iterable[Any]]) -> None:  # noqa: A002
        if isinstance(shards, str | bytes | os.PathLike | set | frozenset):
            raise UsageError(
                f"shards is a {type(shards).__name__}; it must be a list of the shards' names, in "
                f"the same order on every rank, such as sorted(folder.glob('*.tar'))"
            )
        if not callable(open):
            raise UsageError(
                f"open must be a function of the name of a shard that returns an iterable over its "
                f"elements, not {open!r:.200}"
            )
        self.shards: Sequence[Any] = list(shards)
        self.open = open
        if not self.shards:
            raise UsageError("shards is empty; name one shard or more, such as the files to read")
        seen: set[str] = set()
        for shard in self.shards:
            if isinstance(shard, str | os.PathLike):
                if (name := os.fspath(shard)) in seen:
                    raise UsageError(
                        f"shards has {str(shard)!r} twice, so its elements would count twice; "
                        f"name each shard once"
                    )
                seen.add(name)

    @classmethod
    def of(cls, dataset: Any) -> ShardedStream:
        """Return the shards of a Hugging Face ``IterableDataset``, such as the files that it reads.

        It must be the same data set on every rank, from the same files in the same order. Given as
        it is, a data set is instead read whole by every rank, which proves that it is the same.

        Raises:
            UsageError: It is another object; it was split by ``split_dataset_by_node``; or its
                shards need not hold the elements of the whole, as after ``take`` or ``shuffle``.
        """
        count = count_shards(dataset)
        return cls(range(count), lambda shard: dataset.shard(num_shards=count, index=shard))

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements of all shards, in order."""
        for shard in self.shards:
            yield from self.open(shard)


class Note(NamedTuple):
    """What one rank says about the stream that it has read.

    Attributes:
        shards: The number of shards; None if the stream has none.
        names: The digest of the shards' names.
        counts: The number of elements of each part that this rank read, by the part's number.
        digest: The digest of all elements; None if no other rank reads the same ones.
    """

    shards: int | None
    names: bytes
    counts: dict[int, int]
    digest: bytes | None


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


class Stream:
    """One rank's share of a stream: an iterable over batches, which can be read once.

    Each batch is a pair: the global numbers of its samples, int64 of shape (N,), and the list of
    the N samples, 1 to ``batch_size`` of them. An element's global number is its position in the
    stream; in a `ShardedStream`, see `SHARD_BITS`.

    Nothing is opened before the first batch is asked for.

    Args:
        samples: The stream, or a function that returns one.
        rank: The rank whose share this is.
        world_size: The number of ranks.
        batch_size: The number of samples in a batch.
        mode: ``strided`` gives each rank every ``world_size``-th element. ``batches`` cuts the
            stream into batches, of which each rank gets every ``world_size``-th; of a
            `ShardedStream`, a batch then ends where a shard ends.
        limit: The number of elements after which the stream counts as ended.
        by_length: Makes batches by length within windows of the stream; ``mode`` is not used then.

    Raises:
        UsageError: A value is out of range, or a mode needs a length; while it is read, a function
            did not return an iterable.
        SampleError: While it is read, when an element could not be read.
    """

    def __init__(
        self,
        samples: Any,
        rank: int,
        world_size: int,
        batch_size: int,
        mode: str = "strided",
        limit: int | None = None,
        by_length: ByLength | None = None,
    ) -> None:
        if mode == "contiguous":
            raise UsageError(
                "mode 'contiguous' needs samples that have a length, and a stream has none; use "
                "'strided' or 'batches', or make a list of the samples"
            )
        check_choice("mode", mode, ("strided", "batches"))
        self._samples = samples
        self._rank, self._world_size = rank, world_size
        self._batch_size = check_count("batch_size", batch_size)
        self._by_batches = mode == "batches"
        self._by_length = by_length
        self._limit = None if limit is None else check_count("limit", limit)
        self._sharded = samples if isinstance(samples, ShardedStream) else None
        self._part = self._position = 0
        self._counts: dict[int, int] = {}
        self.digest: RunningDigest | None = None

    @property
    def settings(self) -> str:
        """What ranks must agree on before they read the stream."""
        if self._sharded is None:
            return "a stream"
        return f"{len(self._sharded.shards)} shards ({self._names().hex()})"

    def note(self) -> Note:
        """Return what this rank says about the stream, once it has read all of its batches."""
        shards = None if self._sharded is None else len(self._sharded.shards)
        digest = None if self.digest is None else self.digest.value()
        return Note(shards, self._names(), self._counts, digest)

    def __iter__(self) -> Iterator[tuple[Ids, list[Any]]]:
        """Yield this rank's batches, and read the elements of other ranks where that must be."""
        samples = _called(self._samples)
        self._sharded = samples if isinstance(samples, ShardedStream) else None
        if self._sharded is not None and self._limit is None:
            mine, ranks = 0, 1  # of the shards that it reads, every element is this rank's
            parts = range(self._rank, len(self._sharded.shards), self._world_size)
        else:
            mine, ranks = self._rank, self._world_size
            parts = range(1 if self._sharded is None else len(self._sharded.shards))
            self.digest = RunningDigest() if ranks > 1 else None
        turn, left = 0, sys.maxsize if self._limit is None else self._limit
        ids: list[int] = []
        kept: list[Any] = []
        windows = None
        if self._by_length is not None:
            windows = Windows(mine, ranks, self._batch_size, self._by_length)
        for self._part in parts:
            self._position, first = 0, self._part << SHARD_BITS
            with self._opened(samples) as elements:
                for element in islice(elements, left):
                    if self.digest is not None:
                        self.digest.add(element)
                    if windows is not None:
                        yield from windows.add(first + self._position, element)
                    elif turn % ranks == mine:
                        ids.append(first + self._position)
                        kept.append(element)
                    self._position += 1
                    if not self._by_batches or self._position % self._batch_size == 0:
                        turn += 1
                    if len(kept) == self._batch_size:
                        yield np.array(ids, np.int64), kept
                        ids, kept = [], []
            self._counts[self._part] = self._position
            left -= self._position
            if windows is not None:
                yield from windows.flush()
            if self._by_batches and self._position % self._batch_size:
                turn += 1
                if kept:
                    yield np.array(ids, np.int64), kept
                    ids, kept = [], []
            if left == 0:
                break
        if kept:
            yield np.array(ids, np.int64), kept

    @contextmanager
    def _opened(self, samples: Any) -> Iterator[Iterator[Any]]:
        """Open a part of the stream, name the element that fails, and close what was opened."""
        source = samples
        try:
            if self._sharded is not None:
                source = self._sharded.open(self._sharded.shards[self._part])
            yield _iterator(source, "samples" if self._sharded is None else "open")
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
        if self._sharded is None:
            return "the stream"
        return f"the shard {str(self._sharded.shards[self._part])!r:.200}"

    def _names(self) -> bytes:
        return b"" if self._sharded is None else digest_of(self._sharded.shards)


def _called(samples: Any) -> Any:
    """Return the stream; a function is called, which returns one."""
    is_function = callable(samples) and not hasattr(samples, "__iter__")
    samples = samples() if is_function else samples
    torch = sys.modules.get("torch")
    loader = torch is not None and isinstance(samples, torch.utils.data.DataLoader)
    if loader and samples.batch_sampler is not None:
        raise UsageError(
            "samples is a DataLoader, which yields batches, and evaluate makes batches of samples "
            "itself; give its dataset, or a DataLoader with batch_size=None"
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

"""The batches of one rank, and the proof that all ranks together saw each sample once."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Protocol

import numpy as np

from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, Counted, check_once
from disteval.data.batching import Batch, Indices, Picked, Plan, filled_rows
from disteval.data.collate import Collate, assemble
from disteval.data.loading import Loader
from disteval.data.predictions.resume import ListedBatches, parted, resumed
from disteval.data.same_streams import check_streams
from disteval.data.samples import Sized
from disteval.data.streams import Stream
from disteval.errors import UsageError
from disteval.evaluation.dealing import Dealing


class Batches(Protocol):
    """Some batches of one rank.

    Attributes:
        total: The number of samples in all of them, padding included; None if it is not known.
        seen: The number of samples in those that were handed out.
    """

    total: int | None
    seen: int

    def __iter__(self) -> Generator[Batch, None, None]: ...


class Feed(Batches, Protocol):
    """All batches of one rank.

    Attributes:
        compared: The number of samples that all ranks have read and found the same, as `prove`
            found.
    """

    compared: int

    def resume(self, stored: Indices, *, needed: bool) -> None:
        """Hand out stored samples in batches of their own.

        Args:
            stored: The samples whose outputs are stored, sorted.
            needed: Whether these are read, because there are metrics. Otherwise such a batch has
                ids alone, and 0 rows.
        """
        ...

    def note(self) -> Any:
        """Return what this rank tells the others when it has handed out its last batch."""
        ...

    def prove(
        self,
        notes: Sequence[Any],
        counted: Sequence[Certificate],
        mine: Counted,
        backend: BaseDistBackend,
    ) -> int:
        """Return the number of samples, after a proof that each was counted once.

        Raises:
            CoverageError: On every rank, when a sample was missed or counted more than once.
        """
        ...


class SizedFeed:
    """The batches of samples that have numbers.

    Args:
        samples: The samples.
        length: How many there are, which must not change.
        loader: Reads batches of them; it is closed at the end.
        dealing: How they are distributed over ranks.
        backend: The backend that joins the ranks, each of which must make a feed.

    Raises:
        UsageError: On every rank, when the lengths of samples are not such.
        RankError: On every rank, when a rank could not read a length.
    """

    def __init__(
        self,
        samples: Sized,
        length: int,
        loader: Loader,
        dealing: Dealing,
        backend: BaseDistBackend,
    ) -> None:
        self._samples = samples
        self._length = length
        self._size = dealing.limited(self._length)
        self._plan = dealing.plan(samples, self._size, backend)
        self._loader = loader
        self._dealing = dealing
        self._place = backend.world_size, backend.rank
        self._skipped = np.zeros(0, np.int64)
        self._batches: Plan = self._plan
        self.total: int | None = self._plan.samples
        self.seen = 0
        self.compared = 0

    def __iter__(self) -> Generator[Batch, None, None]:
        if len(self._skipped):
            self.seen += len(self._skipped)
            yield Batch(self._skipped, None, None, 0)
        with closing(self._loader) as loader, closing(loader.load(self._batches)) as batches:
            for picked, batch in zip(self._batches, batches, strict=True):
                self.seen += len(picked.indices)
                yield batch
        if len(self._samples) != self._length:
            raise UsageError(
                f"the data set has {len(self._samples)} samples at the end, and had "
                f"{self._length} at the beginning; do not change it while it is evaluated"
            )

    def resume(self, stored: Indices, *, needed: bool) -> None:
        """Hand out stored samples in batches of their own, see `Feed`."""
        world, rank = self._place
        done, left = resumed(self._plan, stored, self._size, world, rank, pad=self._dealing.pad)
        self._batches = ListedBatches(done.batches + left.batches) if needed else left
        if not needed:
            self._skipped = done.ids
        self.total = self._batches.samples + len(self._skipped)

    def note(self) -> Any:
        """Return nothing: the size was agreed on."""

    def prove(
        self,
        notes: Sequence[Any],
        counted: Sequence[Certificate],
        mine: Counted,
        backend: BaseDistBackend,
    ) -> int:
        """Return the size, see `Feed`."""
        check_once(counted, mine, self._size, backend)
        return self._size


class StreamFeed:
    """The batches of a stream.

    Args:
        stream: This rank's share.
        dealing: How batches are made; with workers, a thread reads one batch ahead.
        collate: Makes a batch of a list of samples.
    """

    def __init__(self, stream: Stream, dealing: Dealing, collate: Collate) -> None:
        self._stream = stream
        self._collate = collate
        self._ahead, self._dealing = dealing.workers > 0, dealing
        self._batch_size, self._step = dealing.batch_size, dealing.step
        self._stored: Indices | None = None
        self._needed = True
        self.total: int | None = None
        self.seen = 0
        self.compared = 0

    def __iter__(self) -> Generator[Batch, None, None]:
        with (
            closing(self._batches()) as read,
            closing(_one_ahead(read) if self._ahead else read) as batches,
        ):
            for batch in batches:
                self.seen += len(batch.ids)
                yield batch

    def _batches(self) -> Generator[Batch, None, None]:
        calls = 0
        for ids, samples, snapshots, is_stored in self._parted():
            self._dealing.check_even("shards", self._stream.is_uneven)
            if is_stored and not self._needed:
                yield Batch(ids, None, None, 0)
                continue
            rows = filled_rows(len(ids), self._batch_size, self._step)
            picked = Picked(ids, len(ids), rows)
            calls += 1
            yield assemble(samples, picked, self._collate, snapshots)
        if self._dealing.pad and self._stored is None:
            yield from self._padding(self._stream.most - calls)

    def _padding(self, calls: int) -> Iterator[Batch]:
        """Yield batches of one element that does not count, for a model that spans ranks."""
        number, element = self._stream.last
        for _ in range(calls):
            rows = filled_rows(1, self._batch_size, self._step)
            yield assemble([element], Picked(np.array([number]), 0, rows), self._collate)

    def _parted(self) -> Iterable[tuple[Indices, list[Any], list[bytes], bool]]:
        if self._stored is None:
            return ((*found, False) for found in self._stream)
        return parted(self._stream, self._stored)

    def resume(self, stored: Indices, *, needed: bool) -> None:
        """Hand out stored elements in batches of their own, see `Feed`."""
        self._dealing.check_even("what is left of a stream", self._stream.world_size > 1)
        self._stored, self._needed = stored, needed

    def note(self) -> Any:
        """Return what this rank says about the stream."""
        return self._stream.note()

    def prove(
        self,
        notes: Sequence[Any],
        counted: Sequence[Certificate],
        mine: Counted,
        backend: BaseDistBackend,
    ) -> int:
        """Return the number of elements, see `Feed`."""
        runs = check_streams(notes, self._stream, backend)
        check_once(counted, mine, runs, backend)
        size = sum(map(len, runs))
        self.compared = 0 if notes[0].contents is None else size
        return size


def _one_ahead(batches: Iterator[Batch]) -> Generator[Batch, None, None]:
    with ThreadPoolExecutor(1, thread_name_prefix="disteval-loading") as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch

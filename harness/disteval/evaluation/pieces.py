"""The units that leases consist of: batches of samples that have numbers, or shards of a stream."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from disteval.coverage import Certificate, Counted, certify, describe_faults, not_once, prove
from disteval.data.batching import Batch, Picked, Plan
from disteval.data.collate import collate as default_collate
from disteval.data.loading import Loader
from disteval.data.same_streams import check_has_elements, runs_of_elements
from disteval.data.samples import Sized
from disteval.data.shards import ShardedStream
from disteval.errors import CoverageError, UsageError
from disteval.evaluation.feeds import Batches, StreamFeed
from disteval.evaluation.work import Work
from disteval.leases.book import Lease
from disteval.leases.borrower import Borrower


class Piece(NamedTuple):
    """A committed lease: its units, the proof of its samples, and the note of its feed."""

    start: int
    stop: int
    certificate: Certificate
    note: Any


class LeaseFeed(Batches, Protocol):
    """The batches of one lease, which end early if another rank was first.

    Attributes:
        unit: The unit whose batch was handed out last; the first one before that.
        is_whole: Whether all batches were handed out.
        note: What the rank that computes the results is told about the lease.
    """

    unit: int
    is_whole: bool
    note: Any


class Pieces(Protocol):
    """All units of an evaluation."""

    def __len__(self) -> int: ...

    def feed(self, lease: Lease, borrower: Borrower) -> LeaseFeed:
        """Return the batches of a lease."""
        ...

    def close(self) -> None:
        """End what reads batches."""
        ...

    def prove(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Return the number of samples, and that of padding, after a proof of coverage.

        Raises:
            CoverageError: A sample was missed, or counted more than once.
        """
        ...


def pieces_of(work: Work) -> Pieces:
    """Return the units of an evaluation, as one rank would evaluate them."""
    return PlannedBatches(work) if work.opened is not None else Shards(work)


class PlannedBatches:
    """The batches of samples that have numbers: a unit is a batch of the plan of one rank."""

    def __init__(self, work: Work) -> None:
        assert work.opened is not None and work.size is not None and work.loader is not None
        self._samples, self._size, self._loader = work.opened, work.size, work.loader
        self._length = work.length
        self._plan: Plan = work.dealing.plan(work.opened, work.size, work.backend, whole=True)

    def __len__(self) -> int:
        return len(self._plan)

    def feed(self, lease: Lease, borrower: Borrower) -> LeaseFeed:
        """Return the batches of a lease, see `Pieces`."""
        return _BatchFeed(self._samples, self._length, self._plan, lease, borrower, self._loader)

    def close(self) -> None:
        """End the workers, which stay from lease to lease."""
        self._loader.close()

    def prove(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Prove that every sample was counted once, see `Pieces`."""
        if not prove([piece.certificate for piece in pieces], self._size):
            planned = [self._ids(piece) for piece in pieces]
            for piece, ids in zip(pieces, planned, strict=True):
                if certify(ids).numbers != piece.certificate.numbers:
                    raise CoverageError(
                        f"the rank that evaluated batches {piece.start} to {piece.stop - 1} "
                        f"counted {piece.certificate.counted} samples, and not once each of the "
                        f"{len(ids)} samples of these batches; its process may have changed the "
                        f"samples or their ids"
                    )
            faults = describe_faults(planned, self._size)
            raise not_once(sum(map(len, planned)), self._size, faults or "the proof failed")
        return self._size, self._plan.samples - self._size

    def _ids(self, piece: Piece) -> Any:
        counted = Counted()
        for picked in self._plan.between(piece.start, piece.stop):
            counted.add(picked.indices[: picked.counted])
        return counted.all()


class Shards:
    """The shards of a stream: a unit is a shard, and batches end where a shard ends."""

    def __init__(self, work: Work) -> None:
        assert isinstance(work.samples, ShardedStream)
        self._work, self._shards = work, len(work.samples.shards)

    def __len__(self) -> int:
        return self._shards

    def feed(self, lease: Lease, borrower: Borrower) -> LeaseFeed:
        """Return the batches of a lease, see `Pieces`."""
        return _ShardFeed(self._work, lease, borrower)

    def close(self) -> None:
        """Do nothing."""

    def prove(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Prove that every element was counted once, see `Pieces`.

        Raises:
            UsageError: The stream has no elements.
        """
        counts = {part: count for piece in pieces for part, count in piece.note.items()}
        check_has_elements(counts)
        runs = runs_of_elements(counts)
        size = sum(map(len, runs))
        if [*counts] == [*range(len(self))] and prove([one.certificate for one in pieces], runs):
            return size, 0
        counted = sum(piece.certificate.counted for piece in pieces)
        wrong = (one for one in pieces if not prove([one.certificate], runs_of_elements(one.note)))
        where = ", ".join(f"{one.start} to {one.stop - 1}" for one in wrong) or "that are missing"
        raise not_once(
            counted, size, f"what was counted is not each element once of the shards {where}"
        )


class _BatchFeed:
    """The batches of a lease of batches, see `LeaseFeed`."""

    def __init__(
        self,
        samples: Sized,
        size: int,
        plan: Plan,
        lease: Lease,
        borrower: Borrower,
        loader: Loader,
    ) -> None:
        self.total: int | None = None
        self.seen, self.unit, self.is_whole, self.note = 0, lease.start, False, None
        self._samples, self._size, self._plan, self._lease = samples, size, plan, lease
        self._borrower, self._loader = borrower, loader

    def __iter__(self) -> Generator[Batch, None, None]:
        lease, borrower = self._lease, self._borrower
        picks = _Slice(self._plan, lease.start, lease.stop)
        with closing(self._loader.load(picks)) as batches:
            begin = time.perf_counter()
            for self.unit, picked in enumerate(picks, lease.start):
                batch = next(batches)
                if self._loader.reads_ahead and self.unit == lease.start:
                    borrower.waited = time.perf_counter() - begin
                self.seen += len(picked.indices)
                yield batch
                borrower.progress(lease, self.unit + 1 - lease.start)
                if not borrower.is_wanted(lease):
                    return
        if len(self._samples) != self._size:
            raise UsageError(
                f"the data set has {len(self._samples)} samples at the end, and had {self._size} "
                f"at the beginning; do not change it while it is evaluated"
            )
        self.is_whole = True


class _ShardFeed:
    """The batches of a lease of shards, see `LeaseFeed`. Its note has each shard's length."""

    def __init__(self, work: Work, lease: Lease, borrower: Borrower) -> None:
        self.total: int | None = None
        self.seen, self.unit, self.is_whole = 0, lease.start, False
        self.note: dict[int, int] = {}
        self._lease, self._borrower = lease, borrower
        self._stream = work.dealing.stream(
            work.samples, work.backend, parts=range(lease.start, lease.stop)
        )
        self._feed = StreamFeed(self._stream, work.dealing, work.collating or default_collate)

    def __iter__(self) -> Generator[Batch, None, None]:
        lease, borrower = self._lease, self._borrower
        with closing(iter(self._feed)) as batches:
            for batch in batches:
                self.seen = self._feed.seen
                self.unit = self._stream.part
                yield batch
                borrower.progress(lease, self.unit - lease.start)
                if not borrower.is_wanted(lease):
                    return
        self.note = self._stream.note().counts
        self.is_whole = True


class _Slice:
    """Some consecutive batches of a plan; see `Plan`."""

    def __init__(self, plan: Plan, start: int, stop: int) -> None:
        self._plan, self._start, self._stop = plan, start, stop

    @property
    def samples(self) -> int:
        return sum(len(picked.indices) for picked in self)

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Picked]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Picked]:
        return self._plan.between(self._start + first, self._start + last)

"""Metrics whose result follows from exact sums: a few integers travel, however large the data."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_count
from disteval.contract import BaseDistBackend
from disteval.errors import RankError, UsageError
from disteval.metrics.base import BaseMetric, check_collected, check_sizes

Sums = npt.NDArray[Any]
"""Exact sums: an array of int64, or of Python integers (dtype object) where these are too small."""

_Bring = Callable[[], npt.NDArray[Any]]
_SumsOf = Callable[[npt.NDArray[Any]], Sums]


class SummableMetric(BaseMetric):
    """A metric that keeps a compact column, and whose result follows from sums over it.

    A subclass gives `add`, which passes one row for each sample to `_append`; `sums_of`, which sums
    rows exactly, so that sums of parts add up to the sum of the whole to the last bit; and
    `from_sums`. Each rank drops its own padding and sends its sums, in one collective for all
    metrics that are computed together.
    """

    _results: Column

    @abstractmethod
    def sums_of(self, column: npt.NDArray[Any]) -> Sums:
        """Sum rows exactly: an array that can be added and subtracted.

        It has one axis or more, and always the same shape.
        """

    @abstractmethod
    def from_sums(self, sums: Sums, size: int) -> Any:
        """Turn the sums over all ``size`` samples, 1 or more, into the result; on every rank."""

    def compute_metric(self, results: Any) -> Any:
        """Compute over the rows of all samples."""
        column = np.asarray(results)
        return self.from_sums(self.sums_of(column), len(column))

    def compute(self, size: int | None = None) -> Any:
        """Compute over every rank's samples with one small collective; every rank must call it.

        Where ``size`` drops samples and the ranks do not have equally many, it takes two.

        See `BaseMetric.compute`.
        """
        return compute_together(self.dist_backend, [self], size)[0][0]

    def _append(self, column: npt.NDArray[Any]) -> None:
        """Add one row for each sample."""
        self._results.settle(0)
        self._results.append(column, self.sums_of(column))

    def _append_later(self, length: int, column: Callable[[], npt.NDArray[Any]]) -> None:
        """Add rows that a device is computing still.

        Args:
            length: How many.
            column: Brings them to the host, and waits for them if it must.
        """
        self._results.append_later(length, column, self.sums_of)

    def _fresh(self) -> Any:
        return Column()


_PENDING = 4
"""Batches whose rows may be under way from a device; what queues up there has a bound."""

_FEW = 16
"""Sums up to this number travel as integers, which are shorter than an array."""


class Column:
    """The rows of one rank's samples, and their sums so far."""

    def __init__(self) -> None:
        self._chunks: list[npt.NDArray[Any]] = []
        self._length = 0
        self._sums: Sums | None = None
        self._pending: deque[tuple[int, _Bring, _SumsOf]] = deque()

    def __len__(self) -> int:
        return self._length + sum(length for length, _, _ in self._pending)

    def append(self, chunk: npt.NDArray[Any], sums: Sums) -> None:
        """Add rows and the sums of them."""
        if len(chunk):
            self._chunks.append(chunk)
            self._length += len(chunk)
            self._sums = sums if self._sums is None else self._sums + sums

    def append_later(self, length: int, bring: _Bring, sums_of: _SumsOf) -> None:
        """Add ``length`` rows that ``bring`` gives; the oldest under way are brought first."""
        self._pending.append((length, bring, sums_of))
        self.settle(_PENDING)

    def settle(self, most: int) -> None:
        """Bring what is under way, until no more than ``most`` batches are."""
        while len(self._pending) > most:
            _, bring, sums_of = self._pending[0]
            chunk = bring()
            sums = sums_of(chunk)
            # Not before: rows that can't be had must fail again, instead of being forgotten.
            self._pending.popleft()
            self.append(chunk, sums)

    def sums(self, keep: int, metric: SummableMetric) -> Sums | None:
        """Sum the first ``keep`` rows; the work is that of the fewer, kept or dropped."""
        self.settle(0)
        if keep == self._length:
            return self._sums
        if self._sums is None or keep == 0:
            return None
        if keep > self._length // 2:
            return self._sums - metric.sums_of(self._last(self._length - keep))
        return metric.sums_of(np.concatenate(self._chunks)[:keep])

    def _last(self, count: int) -> npt.NDArray[Any]:
        """The last rows, in no order: they are summed."""
        found: list[npt.NDArray[Any]] = []
        for chunk in reversed(self._chunks):
            found.append(chunk[-count:])
            count -= len(chunk)
            if count <= 0:
                break
        return np.concatenate(found)


class _Offer(NamedTuple):
    """What one rank sends for one metric.

    Attributes:
        length: Its samples.
        sums: The sums of those that count if shards are as samplers pad them.
        whole: The sums of all of them, where these are more.
        failure: Why there are no sums.
    """

    length: int
    sums: Any
    whole: Any = None
    failure: str | None = None


def compute_together(
    backend: BaseDistBackend,
    metrics: Sequence[SummableMetric],
    size: int | None = None,
    note: Any = None,
) -> tuple[list[Any], list[Any]]:
    """Compute several metrics with one collective; every rank must call it with the same ones.

    Args:
        backend: Moves the sums.
        metrics: What to compute.
        size: Samples in the data set, see `BaseMetric.compute`.
        note: Something small that travels along.

    Returns:
        The results, in the order of ``metrics``; and every rank's note, by rank.

    Raises:
        UsageError: On every rank, when sizes can't be, or there are no samples.
        RankError: On every rank, when a rank could not sum up.
    """
    world, rank = backend.world_size, backend.rank
    mine = [_guess(metric, len(metric._results), world, rank, size) for metric in metrics]
    sent = backend.all_gather_object((size, note, _offers(metrics, mine)))
    check_sizes([given for given, _, _ in sent])
    gathered = [
        _Gathered(metric, [_Offer(*offers[i]) for _, _, offers in sent], size)
        for i, metric in enumerate(metrics)
    ]
    if any(each.sums is None for each in gathered):
        # Shards are not as samplers deal them, which every rank sees: each sums what it now knows.
        again = backend.all_gather_object(_offers(metrics, [g.shares[rank] for g in gathered]))
        for i, each in enumerate(gathered):
            each.take([_Offer(*offers[i]) for offers in again])
    return [each.result() for each in gathered], [sent_note for _, sent_note, _ in sent]


class _Gathered:
    """What all ranks sent for one metric; ``sums`` is None where it does not suffice."""

    def __init__(self, metric: SummableMetric, offers: list[_Offer], size: int | None) -> None:
        lengths = [offer.length for offer in offers]
        world = len(offers)
        self._metric = metric
        self._offers = offers
        guess = [_guess(metric, n, world, rank, size) for rank, n in enumerate(lengths)]
        self.shares = _shares(lengths, guess, metric.dist_collect_mode, size)
        self.sums: list[Any] | None = None
        if self.shares == guess:
            self.sums = [offer.sums for offer in offers]
        elif self.shares == lengths:
            self.sums = [offer.sums if offer.whole is None else offer.whole for offer in offers]

    def take(self, offers: list[_Offer]) -> None:
        """Take what was sent when everybody knew how much of each rank counts."""
        self._offers = offers
        self.sums = [offer.sums for offer in offers]

    def result(self) -> Any:
        for rank, offer in enumerate(self._offers):
            if offer.failure is not None:
                name = type(self._metric).__name__
                raise RankError(rank, f"could not sum up {name}: {offer.failure}")
        if not sum(self.shares):
            raise UsageError("no samples: add() was not called on any rank, or with empty batches")
        sums: list[Sums] = [
            np.array(each, dtype=object) if isinstance(each, list) else each
            for each in self.sums or []
            if each is not None
        ]
        return self._metric.from_sums(sum(sums[1:], start=sums[0]), sum(self.shares))


def _offers(metrics: Sequence[SummableMetric], keep: Sequence[int]) -> list[tuple[Any, ...]]:
    return [tuple(_offer(metric, share)) for metric, share in zip(metrics, keep, strict=True)]


def _offer(metric: SummableMetric, keep: int) -> _Offer:
    length = len(metric._results)
    try:
        sums = _sendable(metric._results.sums(keep, metric))
        whole = _sendable(metric._results.sums(length, metric)) if keep < length else None
    except Exception as error:  # the other ranks wait for word of it
        return _Offer(length, None, None, f"{type(error).__name__}: {error}")
    return _Offer(length, sums, whole)


def _sendable(sums: Sums | None) -> Sums | list[Any] | None:
    if sums is not None and (sums.dtype == object or sums.size <= _FEW):
        return list(sums.tolist())
    return sums


def _guess(metric: SummableMetric, length: int, world: int, rank: int, size: int | None) -> int:
    """How many of a rank's samples count, if shards are as samplers deal them."""
    if size is None or not is_count(size, 0):
        return length
    strided = metric.dist_collect_mode == "unzip"
    counted = -(-(int(size) - rank) // world) if strided else int(size) - rank * length
    return min(max(counted, 0), length)


def _shares(lengths: list[int], guess: list[int], mode: str, size: int | None) -> list[int]:
    """How many of each rank's samples count: those past ``size``, in data-set order, do not."""
    if size is None:
        return lengths
    check_collected(size, sum(lengths))
    if sum(lengths) == size:
        return lengths
    if lengths.count(lengths[0]) == len(lengths):  # what the guess takes for given
        return guess
    if mode == "cat":
        ends = np.cumsum(lengths)
        return [int(min(max(size - (end - n), 0), n)) for end, n in zip(ends, lengths, strict=True)]
    rounds, most = 0, max(lengths)  # whole rounds of one sample a rank that still fit
    while rounds < most:
        middle = (rounds + most + 1) // 2
        if sum(min(n, middle) for n in lengths) <= size:
            rounds = middle
        else:
            most = middle - 1
    shares = [min(n, rounds) for n in lengths]
    left = size - sum(shares)
    for rank, n in enumerate(lengths):
        if left and n > rounds:
            shares[rank] += 1
            left -= 1
    return shares

"""Metrics whose result follows from exact sums: a few integers travel, however large the data."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.arguments import is_count
from disteval.contract import BaseDistBackend
from disteval.errors import RankError, describe_error
from disteval.metrics.base import BaseMetric, check_collected, check_sizes, no_samples

Sums = npt.NDArray[Any]
"""Exact sums: an array of int64, or of Python integers (dtype object) where int64 is too small."""

Bring = Callable[[], npt.NDArray[Any]]
"""Waits for rows that a device is computing, and returns them."""


class SummableMetric(BaseMetric):
    """A metric that keeps a compact column of rows, and whose result follows from sums over it.

    A subclass defines three methods: `add`, which passes one row for each sample to `_append`;
    `sums_of`, which sums rows exactly, so that the sums of parts add up to the sums of the whole;
    and `from_sums`. Each rank drops its own padding and sends its sums. All metrics that are
    computed together share one collective.
    """

    _results: Column

    @abstractmethod
    def sums_of(self, column: npt.NDArray[Any]) -> Sums:
        """Sum rows exactly into an array that can be added and subtracted.

        The array has one axis or more, and the same shape for any number of rows.
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

        It takes two collectives if ``size`` drops samples and the ranks do not hold equally many.
        See `BaseMetric.compute`.
        """
        return compute_together(self.dist_backend, [self], size)[0][0]

    def _append(self, column: npt.NDArray[Any]) -> None:
        """Add one row for each sample."""
        self._results.settle()
        self._results.append(column, self.sums_of(column))

    def _append_later(self, length: int, bring: Bring) -> None:
        """Add rows that a device is still computing.

        Args:
            length: The number of rows.
            bring: Waits for the rows and returns them, in the host's memory.
        """
        self._results.append_later(length, bring, self.sums_of)

    def _fresh(self) -> Any:
        return Column()


_PENDING = 4
"""The most batches whose rows may still be on a device, which bounds the memory they take there."""

_FEW = 16
"""Sums up to this number travel as integers, which take fewer bytes than an array."""


class Column:
    """The rows of one rank's samples, and their sums so far."""

    def __init__(self) -> None:
        self._chunks: list[npt.NDArray[Any]] = []
        self._length = 0
        self._sums: Sums | None = None
        self._pending: deque[tuple[int, Bring, Callable[[npt.NDArray[Any]], Sums]]] = deque()

    def __len__(self) -> int:
        return self._length + sum(length for length, _, _ in self._pending)

    def append(self, chunk: npt.NDArray[Any], sums: Sums) -> None:
        """Add rows and their sums."""
        if len(chunk):
            self._chunks.append(chunk)
            self._length += len(chunk)
            self._sums = sums if self._sums is None else self._sums + sums

    def append_later(
        self, length: int, bring: Bring, sums_of: Callable[[npt.NDArray[Any]], Sums]
    ) -> None:
        """Add ``length`` rows that ``bring`` returns; the oldest pending rows are brought first."""
        self._pending.append((length, bring, sums_of))
        self.settle(_PENDING)

    def settle(self, most: int = 0) -> None:
        """Bring pending rows until no more than ``most`` batches are pending."""
        while len(self._pending) > most:
            _, bring, sums_of = self._pending[0]
            chunk = bring()
            sums = sums_of(chunk)
            # Not before: rows that can't be had must fail again, instead of being forgotten.
            self._pending.popleft()
            self.append(chunk, sums)

    def sums(self, keep: int, metric: SummableMetric) -> Sums | None:
        """Sum the first ``keep`` rows, or subtract the sums of the others if these are fewer.

        Returns:
            The sums; None if no row is kept.
        """
        self.settle()
        if keep == 0 or self._sums is None:
            return None
        if keep == self._length:
            return self._sums
        rows = np.concatenate(self._chunks)
        self._chunks = [rows]
        if keep > self._length // 2:
            return self._sums - metric.sums_of(rows[keep:])
        return metric.sums_of(rows[:keep])


class _Offer(NamedTuple):
    """The sums that one rank sends for one metric.

    Attributes:
        length: The rank's samples, padding included.
        sums: The sums of the samples that count if shards are padded as samplers do it.
        whole: The sums of all of the rank's samples, if these are more.
        failure: The error of a rank that could not sum.
    """

    length: int
    sums: Any = None
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
        backend: The backend that carries the sums.
        metrics: The metrics to compute.
        size: The samples in the data set, see `BaseMetric.compute`.
        note: A small object that is sent along.

    Returns:
        The results, in the order of ``metrics``; and every rank's note, by rank.

    Raises:
        UsageError: On every rank, when ``size`` is out of range, or there are no samples.
        RankError: On every rank, when a rank could not sum.
    """
    # A rank does not know yet how many samples the others hold. It sends the sums that are right if
    # they hold as many, as samplers make it. For padded shards this saves a second collective, a
    # third of the time of `compute` on two ranks.
    world, rank = backend.world_size, backend.rank
    known = size if is_count(size, 0) else None
    assumed = [_assumed(len(m._results), rank, world, m, known) for m in metrics]
    sent = backend.all_gather_object((size, note, _offers(metrics, assumed)))
    check_sizes([given for given, _, _ in sent])
    gathered = _by_metric(metrics, [offers for _, _, offers in sent])
    counted = []
    for metric, offers in zip(metrics, gathered, strict=True):
        lengths = [offer.length for offer in offers]
        check_collected(size, sum(lengths))
        counted.append(_counted(lengths, metric, size))
    sums = [_chosen(*each, size) for each in zip(metrics, gathered, counted, strict=True)]
    if None in sums:  # on every rank alike, because all ranks gathered the same
        again = backend.all_gather_object(_offers(metrics, [counts[rank] for counts in counted]))
        sums = [[offer.sums for offer in offers] for offers in _by_metric(metrics, again)]
    results = [_result(*each) for each in zip(metrics, sums, map(sum, counted), strict=True)]
    return results, [sent_note for _, sent_note, _ in sent]


def _offers(metrics: Sequence[SummableMetric], keep: Sequence[int]) -> list[tuple[Any, ...]]:
    return [tuple(_offer(metric, count)) for metric, count in zip(metrics, keep, strict=True)]


def _offer(metric: SummableMetric, keep: int) -> _Offer:
    length = len(metric._results)
    try:
        sums = _sendable(metric._results.sums(keep, metric))
        whole = _sendable(metric._results.sums(length, metric)) if keep < length else None
    except Exception as error:  # the other ranks wait in the collective
        return _Offer(length, failure=describe_error(error))
    return _Offer(length, sums, whole)


def _sendable(sums: Sums | None) -> Sums | list[Any] | None:
    if sums is not None and (sums.dtype == object or sums.size <= _FEW):
        return list(sums.tolist())
    return sums


def _by_metric(metrics: Sequence[SummableMetric], sent: list[Any]) -> list[list[_Offer]]:
    """Sort what each rank sent by metric, or raise the error of a rank that could not sum."""
    gathered = [[_Offer(*offers[i]) for offers in sent] for i in range(len(metrics))]
    for metric, offers in zip(metrics, gathered, strict=True):
        for rank, offer in enumerate(offers):
            if offer.failure is not None:
                raise RankError(rank, f"could not sum up {type(metric).__name__}: {offer.failure}")
    return gathered


def _assumed(
    length: int, rank: int, world_size: int, metric: SummableMetric, size: int | None
) -> int:
    """Return how many of a rank's samples count if every rank holds as many as this one."""
    if size is None:
        return length
    if metric.dist_collect_mode == "cat":
        counted = size - rank * length
    else:
        counted = -(-(size - rank) // world_size)
    return min(max(counted, 0), length)


def _counted(lengths: list[int], metric: SummableMetric, size: int | None) -> list[int]:
    """Return how many samples of each rank are among the first ``size`` of the data set."""
    if size is None or size >= sum(lengths):
        return lengths
    if len(set(lengths)) == 1:
        world_size = len(lengths)
        return [_assumed(n, rank, world_size, metric, size) for rank, n in enumerate(lengths)]
    if metric.dist_collect_mode == "cat":
        starts = accumulate(lengths, initial=0)
        return [min(max(size - start, 0), n) for start, n in zip(starts, lengths, strict=False)]
    # Samples come from each rank in turn: so many whole rounds fit, then one each from some ranks.
    rounds = range(max(lengths) + 1)
    fit = bisect_right(rounds, size, key=lambda most: sum(min(n, most) for n in lengths)) - 1
    counts = [min(n, fit) for n in lengths]
    for rank in [rank for rank, n in enumerate(lengths) if n > fit][: size - sum(counts)]:
        counts[rank] += 1
    return counts


def _chosen(
    metric: SummableMetric, offers: list[_Offer], counts: list[int], size: int | None
) -> list[Any] | None:
    """Return each rank's sums over the samples that count; None if they were not sent."""
    lengths = [offer.length for offer in offers]
    if counts == lengths:
        return [offer.sums if offer.whole is None else offer.whole for offer in offers]
    world_size = len(lengths)
    assumed = [_assumed(n, r, world_size, metric, size) for r, n in enumerate(lengths)]
    return [offer.sums for offer in offers] if counts == assumed else None


def _result(metric: SummableMetric, sums: list[Any] | None, size: int) -> Any:
    if size == 0:
        raise no_samples()
    first, *others = (
        np.array(each, dtype=object) if isinstance(each, list) else each
        for each in sums or []
        if each is not None
    )
    return metric.from_sums(sum(others, start=first), size)

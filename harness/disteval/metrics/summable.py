"""Metrics whose result follows from exact sums: a few integers travel, however large the data."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from functools import reduce
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from disteval.arguments import is_count
from disteval.contract import BaseDistBackend
from disteval.coverage import Certificate, prove
from disteval.errors import RankError, describe_error
from disteval.identity import Check
from disteval.metrics.base import BaseMetric, check_collected, check_sizes, no_samples
from disteval.metrics.ids import Once, SampleRows, check_all_or_none
from disteval.metrics.rows import Bring, Column, Rows, Sums, add_sums, as_array, sendable

_Keep = int | Once
"""The rows of a rank to sum: so many from the beginning, or those of samples that count once."""


class SummableMetric(BaseMetric):
    """A metric that keeps a compact column of rows, and whose result follows from sums over it.

    A subclass defines three methods: `add`, which passes one row for each sample, and the ids, to
    `_append`; `sums_of`, which sums rows exactly, so that the sums of parts add up to the sums of
    the whole; and `from_sums`. Each rank drops its own padding and sends its sums. All metrics that
    are computed together share one collective.
    """

    uses_ids: bool = False
    _results: Column

    @abstractmethod
    def sums_of(self, column: Rows) -> Sums:
        """Sum rows exactly into an array that can be added and subtracted.

        The array has one axis or more, and the same shape for any number of rows.
        """

    @abstractmethod
    def from_sums(self, sums: Sums, size: int) -> Any:
        """Turn the sums over all ``size`` rows, 1 or more, into the result; on every rank."""

    def compute_metric(self, results: Any) -> Any:
        """Compute over the rows of all samples."""
        column = np.asarray(results)
        return self.from_sums(self.sums_of(column), len(column))

    def compute(self, size: int | None = None) -> Any:
        """Compute over every rank's samples with one small collective; every rank must call it.

        It takes two collectives if ``size`` drops samples and the ranks do not hold equally many.
        With ids it takes three, of which one carries 8 bytes for each sample, unless all ranks
        together added each sample of ``size`` once. See `BaseMetric.compute`.
        """
        backend = self.dist_backend
        return compute_together(backend, [self], size, *self._agreement(backend))[0][0]

    def _append(self, column: Rows, ids: Any = None) -> None:
        """Add one row for each sample, and the ids that `add` was given."""
        checked = self._ids.check(ids, len(column), len(self._results))
        self._results.append(column, self.sums_of)
        self._ids.add(checked)

    def _append_later(self, length: int, bring: Bring, ids: Any = None) -> None:
        """Add rows that a device is still computing.

        Args:
            length: The number of rows.
            bring: Waits for the rows and returns them, in the host's memory.
            ids: The ids that `add` was given.
        """
        checked = self._ids.check(ids, length, len(self._results))
        context = copy_context()  # so that a late error names the samples of its own batch
        self._results.append_later(length, lambda: context.run(bring), self.sums_of)
        self._ids.add(checked)

    def reset_to_sums(self) -> None:
        """Remove every row, and keep only the sums of rows that are added before the next reset.

        Then memory does not grow with the number of samples, but `compute` can't drop any. The rows
        of a metric with ``uses_ids`` are kept, because it drops those of repeated ids.
        """
        self.reset()
        self._results = Column(keep_rows=self.uses_ids)

    def _fresh(self) -> Any:
        return Column()

    def _state(self) -> Any:
        """Return the sums alone; or the rows, if repeated ids are still to be dropped."""
        length = len(self._results)
        sums = sendable(self._results.sums(length, self.sums_of))
        rows = self._results.rows() if self._results.keeps_rows else None
        return length, sums, self._ids.sent(), rows

    def _compute_states(self, states: Sequence[Any]) -> Any:
        lengths, sums, ids, rows = zip(*states, strict=True)
        if all(each is None for each in rows):
            return _result(self, [*sums], [*lengths])
        self.reset()
        for column, sent in zip(rows, ids, strict=True):
            self._results.append(column, self.sums_of)
            self._ids.add(sent and SampleRows(*sent))
        return self.compute()


_Offer = tuple[int, int, Any, Any, str | None, Certificate | None, Any]
"""What one rank sends for one metric: an entry of each field of `_Gathered`."""


class _Gathered(NamedTuple):
    """The offers of all ranks for one metric; each field has one entry a rank, by rank.

    Attributes:
        lengths: The number of the rank's rows, padding included.
        kept: The number of rows that count; in the first collective, if all ranks hold as many.
        sums: The sums of these rows.
        wholes: The sums of all of the rank's rows, if these are more.
        failures: The error of a rank that could not sum.
        certificates: The proof of coverage, if the samples have ids.
        values: A value for each sample whose id occurs more than once, if repeats are dropped.
    """

    lengths: tuple[int, ...]
    kept: tuple[int, ...]
    sums: tuple[Any, ...]
    wholes: tuple[Any, ...]
    failures: tuple[str | None, ...]
    certificates: tuple[Any, ...]
    values: tuple[Any, ...]


def compute_together(
    backend: BaseDistBackend,
    metrics: Sequence[SummableMetric],
    size: int | None = None,
    note: Any = None,
    check: Check | None = None,
) -> tuple[list[Any], list[Any]]:
    """Compute several metrics with one collective; every rank must call it with the same ones.

    Args:
        backend: The backend that carries the sums.
        metrics: The metrics to compute.
        size: The samples in the data set, see `BaseMetric.compute`.
        note: A small object that is sent along.
        check: A function that gets every rank's note, before anything else is sent or computed.

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
    mine = [_offer(m, _assumed(m, len(m._results), rank, world, known), rank) for m in metrics]
    sent = backend.all_gather_object((size, note, mine))
    sizes, notes, offers = map(list, zip(*sent, strict=True))
    if check is not None:
        check(notes)
    check_sizes(sizes)
    counted: list[Any] = []
    sums: list[Any] = []
    for metric, found in _by_metric(metrics, offers):
        counts = _counted(metric, found, size)
        counted.append(counts)
        sums.append(_chosen(found, counts))
    if None in sums:  # on every rank alike, because all ranks gathered the same
        keep = _decide(backend, metrics, counted, size)
        mine = [_offer(m, kept, rank) for m, kept in zip(metrics, keep, strict=True)]
        offers = backend.all_gather_object(mine)
        gathered = [found for _, found in _by_metric(metrics, offers)]
        for decided, found in zip(keep, gathered, strict=True):
            if isinstance(decided, Once):
                decided.compare([*chain.from_iterable(found.values)])
        counted = [found.kept for found in gathered]
        sums = [found.sums for found in gathered]
    return [_result(*each) for each in zip(metrics, sums, counted, strict=True)], notes


def _decide(
    backend: BaseDistBackend,
    metrics: Sequence[SummableMetric],
    counted: Sequence[Sequence[int] | None],
    size: int | None,
) -> list[_Keep]:
    """Return which rows of this rank count; gathers the ids where repeated ones are dropped."""
    by_id = [m._ids.all() for m, counts in zip(metrics, counted, strict=True) if counts is None]
    shards = backend.all_gather_object(by_id) if by_id else []
    once = iter([Once(ids, size) for ids in zip(*shards, strict=True)])
    return [next(once) if counts is None else counts[backend.rank] for counts in counted]


def _offer(metric: SummableMetric, keep: _Keep, rank: int) -> _Offer:
    column, ids = metric._results, metric._ids
    length = len(column)
    try:
        if isinstance(keep, Once):
            rows = np.repeat(keep.kept(rank), ids.all_rows())
            sums = sendable(column.sums(rows, metric.sums_of))
            values = column.values(ids.all_rows(), keep.repeated(rank))
            return length, int(np.count_nonzero(rows)), sums, None, None, None, values
        sums = sendable(column.sums(keep, metric.sums_of))
        whole = sendable(column.sums(length, metric.sums_of)) if keep < length else None
    except Exception as error:  # the other ranks wait in the collective
        return length, 0, None, None, describe_error(error), None, None
    return length, keep, sums, whole, None, ids.certificate(), None


def _by_metric(
    metrics: Sequence[SummableMetric], sent: Sequence[list[_Offer]]
) -> Iterator[tuple[SummableMetric, _Gathered]]:
    """Yield each metric with what ranks sent, or raise the error of a rank that could not sum."""
    for metric, offers in zip(metrics, zip(*sent, strict=True), strict=True):
        gathered = _Gathered(*zip(*offers, strict=True))
        if any(gathered.failures):
            rank, failure = next((r, text) for r, text in enumerate(gathered.failures) if text)
            raise RankError(rank, f"could not sum up {type(metric).__name__}: {failure}")
        yield metric, gathered


def _assumed(
    metric: SummableMetric, length: int, rank: int, world_size: int, size: int | None
) -> int:
    """Return how many of a rank's rows count if every rank holds as many as this one."""
    if size is None:
        return length
    if metric.dist_collect_mode == "cat":
        counted = size - rank * length
    else:
        counted = -(-(size - rank) // world_size)
    return min(max(counted, 0), length)


def _counted(metric: SummableMetric, offers: _Gathered, size: int | None) -> Sequence[int] | None:
    """Return how many rows of each rank count; None if repeated ids have to be dropped."""
    lengths = offers.lengths
    if check_all_or_none(lengths, offers.certificates):
        proofs = [Certificate(*sent) for sent in offers.certificates if sent]
        return lengths if size is not None and prove(proofs, size) else None
    collected, world = sum(lengths), len(lengths)
    check_collected(size, collected)
    if size is None or size >= collected:
        return lengths
    if lengths.count(lengths[0]) == world:
        return tuple(_assumed(metric, lengths[0], rank, world, size) for rank in range(world))
    if metric.dist_collect_mode == "cat":
        starts = accumulate(lengths, initial=0)
        return tuple(min(max(size - at, 0), n) for at, n in zip(starts, lengths, strict=False))
    # Samples come from each rank in turn: so many whole rounds fit, then one each from some ranks.
    rounds = range(max(lengths) + 1)
    fit = bisect_right(rounds, size, key=lambda most: sum(min(n, most) for n in lengths)) - 1
    counts = [min(n, fit) for n in lengths]
    for rank in [rank for rank, n in enumerate(lengths) if n > fit][: size - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


def _chosen(offers: _Gathered, counts: Sequence[int] | None) -> Sequence[Any] | None:
    """Return each rank's sums over the rows that count; None if they were not sent."""
    if counts == offers.kept:
        return offers.sums
    if counts != offers.lengths:
        return None
    pairs = zip(offers.sums, offers.wholes, strict=True)
    return [sums if whole is None else whole for sums, whole in pairs]


def _result(metric: SummableMetric, sums: Sequence[Any], counts: Sequence[int]) -> Any:
    size = sum(counts)
    if size == 0:
        raise no_samples()
    return metric.from_sums(as_array(reduce(add_sums, sums)), size)

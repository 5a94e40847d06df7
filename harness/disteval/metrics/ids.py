"""The global numbers of samples, by which repeated samples are dropped and missing ones named."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.coverage import Certificate, certify, describe_faults, name_some
from disteval.errors import CoverageError, UsageError, describe_error
from disteval.metrics.arrays import to_numpy

Numbers = npt.NDArray[np.int64]
Sent = tuple[Numbers, Numbers]


_ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6, "equal_nan": True}
"""How far two values of one sample may differ, because libraries for matrices round a row by the
size of its batch; enough for float32, and far less than another model makes."""


class SampleRows(NamedTuple):
    """Ids for samples that have several rows each, as pictures have pixels and sentences tokens.

    Attributes:
        ids: The ids of the samples, integers of shape (B,).
        rows: The number of consecutive rows of each sample: one integer for all samples, or
            integers of shape (B,). A sample may have 0 rows.
    """

    ids: Any
    rows: Any


class Ids:
    """The ids of the samples that one rank added, and the number of rows that each has."""

    def __init__(self) -> None:
        self._ids: list[Numbers] = [np.zeros(0, np.int64)]
        self._rows: list[Numbers] = [np.zeros(0, np.int64)]
        self.samples = 0
        self.rows = 0
        self.are_later = False  # whether rows without ids get theirs once they are added

    def check(self, ids: Any, rows: int, collected: int) -> SampleRows | None:
        """Check the ids of one batch before it is added.

        Args:
            ids: The ``ids`` of `BaseMetric.add`.
            rows: The number of rows of the batch.
            collected: The number of rows that this rank added before, with and without ids.

        Returns:
            The ids to `add` once the rows are added; None if the batch has no ids.

        Raises:
            UsageError: The ids are not integers from 0 up, do not fit the rows, or are given for
                some batches only.
        """
        if ids is None:
            if rows and self.samples and not self.are_later:
                raise UsageError("this batch has no ids, but earlier ones had; give ids to each")
            return None
        if collected != self.rows:
            raise UsageError("this batch has ids, but earlier ones had none; give ids to each")
        several = isinstance(ids, SampleRows)
        found = integers("ids", ids.ids if several else ids)
        counts = integers("SampleRows.rows", ids.rows) if several else np.array(1)
        if found.ndim != 1 or counts.shape not in ((), found.shape):
            raise UsageError(
                f"ids have shape {found.shape}, with rows of shape {counts.shape}; give ids of "
                f"shape (N,), and the rows of SampleRows as one integer or of the same shape"
            )
        counts = np.broadcast_to(counts, found.shape)
        if counts.sum() != rows:
            raise UsageError(
                f"the ids are those of {counts.sum()} rows, but the batch has {rows}; give one for "
                f"each row, SampleRows if a sample has several rows, or a class whose entries need "
                f"no order uses_ids = False"
            )
        return SampleRows(found, counts)

    def add(self, checked: SampleRows | None) -> None:
        """Add the ids that `check` returned."""
        if checked is not None:
            self._ids.append(checked.ids)
            self._rows.append(checked.rows)
            self.samples += len(checked.ids)
            self.rows += int(checked.rows.sum())

    def all(self) -> Numbers:
        """Return the ids of all samples, in the order in which they were added."""
        self._ids = [np.concatenate(self._ids)]
        return self._ids[0]

    def all_rows(self) -> Numbers:
        """Return the number of rows of each sample."""
        self._rows = [np.concatenate(self._rows)]
        return self._rows[0]

    def sent(self) -> Sent | None:
        """Return the ids and the numbers of rows; None if this rank added no ids."""
        return (self.all(), self.all_rows()) if self.samples else None

    def certificate(self) -> Certificate | None:
        """Return this rank's part of the proof of coverage; None if it added no ids."""
        return certify(self.all()) if self.samples else None


def check_all_or_none(lengths: Sequence[int], ids: Sequence[Any]) -> bool:
    """Return whether the samples have ids; every rank raises the same error if only some have.

    Args:
        lengths: The number of rows of each rank.
        ids: What each rank sent about its ids; None if it has none.
    """
    given = [rank for rank, sent in enumerate(ids) if sent is not None]
    if not given:
        return False
    plain = [rank for rank, rows in enumerate(lengths) if rows and ids[rank] is None]
    if plain:
        raise UsageError(
            f"rank {given[0]} added samples with ids and rank {plain[0]} without; "
            f"give ids to each batch on every rank"
        )
    return True


class Once:
    """The samples that count when each id counts once: of equal ids the first, by rank.

    Args:
        shards: Each rank's ids, by rank.
        size: The number of samples in the data set; None does not check the coverage.

    Raises:
        CoverageError: A sample is missing, or not in the data set.
    """

    def __init__(self, shards: Sequence[Numbers], size: int | None) -> None:
        self.ids = np.concatenate(shards)
        distinct, self.first, inverse, times = np.unique(
            self.ids, return_index=True, return_inverse=True, return_counts=True
        )
        faults = describe_faults([distinct], size)
        if faults:
            raise CoverageError(
                f"all ranks together added {len(distinct)} different samples, but size={size}: "
                f"{faults}. Each sample of the data set must be added under its number, from 0 up; "
                f"look at which samples each rank adds"
            )
        self._first_alike = self.first[inverse]
        self.is_repeated = times[inverse] > 1
        self._starts = np.cumsum([0, *map(len, shards)])

    def kept(self, rank: int) -> npt.NDArray[np.bool_]:
        """Return which of a rank's samples count."""
        start, end = self._starts[rank : rank + 2]
        found: npt.NDArray[np.bool_] = self._first_alike[start:end] == np.arange(start, end)
        return found

    def repeated(self, rank: int) -> Numbers:
        """Return the positions of a rank's samples whose ids occur more than once."""
        return np.flatnonzero(self.is_repeated[slice(*self._starts[rank : rank + 2])])

    def compare(self, values: Sequence[Any]) -> None:
        """Check that samples with equal ids have equal values, of which the first counts.

        Args:
            values: A value for each sample whose id occurs more than once, in the order of ranks.

        Raises:
            CoverageError: Two samples with equal ids have different values, beyond the rounding
                that depends on the rest of a batch.
        """
        at = np.flatnonzero(self.is_repeated)
        first = np.searchsorted(at, self._first_alike[at])
        wrong = at[[not _same(values[i], values[k]) for i, k in enumerate(first)]]
        if len(wrong):
            places = [self._first_alike[wrong[0]], wrong[0]]
            ranks = np.searchsorted(self._starts, places, side="right") - 1
            ids = np.unique(self.ids[wrong])
            raise CoverageError(
                f"sample {self.ids[wrong[0]]} was added with one value on rank {ranks[0]} and "
                f"another on rank {ranks[1]}; {len(ids)} samples have several values "
                f"({name_some(ids)}). Let the model's result not depend on the batch or the rank, "
                f"or add each sample once"
            )


def merge(shards: Sequence[Sequence[Any]], sent: Sequence[Sent | None], size: int | None) -> Any:
    """Return the entries of each id once, in the order of ids.

    Args:
        shards: Each rank's entries, one for each row.
        sent: What `Ids.sent` returned on each rank.
        size: The number of samples in the data set, or None.

    Raises:
        CoverageError: See `Once`.
        UsageError: A rank has entries without ids.
    """
    empty = np.zeros(0, np.int64)
    ids, rows = zip(*(each or (empty, empty) for each in sent), strict=True)
    for rank, (entries, each) in enumerate(zip(shards, rows, strict=True)):
        if len(entries) != each.sum():
            raise UsageError(f"rank {rank} has {len(entries)} entries, but ids for {each.sum()}")
    once = Once(ids, size)
    together = list(chain.from_iterable(shards))
    ends = np.cumsum(np.concatenate(rows))
    starts = ends - np.concatenate(rows)
    samples = [together[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    once.compare([samples[i] for i in np.flatnonzero(once.is_repeated)])
    return [entry for i in once.first for entry in samples[i]]


def integers(what: str, values: Any) -> Numbers:
    """Return a copy of integers from 0 up, or raise UsageError if they are something else."""
    try:
        found = to_numpy(values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} must be integers from 0 up: {describe_error(error)}") from None
    if found.size == 0:
        return found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise UsageError(f"{what} must be integers from 0 up, not of {found.dtype}")
    whole = found.astype(np.int64)  # a copy, because the caller may reuse the memory
    if whole.min() < 0:  # also of a number over 2**63
        wrong = found[whole < 0][0]
        raise UsageError(f"{what} must be integers from 0 to 2**63-1, but one is {wrong}")
    return whole


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of a sample are equal, but for the rounding of floats."""
    with suppress(Exception):  # values may be of any class
        equal = one == other
        if isinstance(equal, bool | np.bool_) and equal:  # of arrays it is an array
            return True
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_same, one, other))
    with suppress(Exception):
        if {np.asarray(one).dtype.kind, np.asarray(other).dtype.kind} == {"f"}:
            return np.shape(one) == np.shape(other) and np.allclose(one, other, **_ROUNDING)
    return pickle.dumps(one) == pickle.dumps(other)

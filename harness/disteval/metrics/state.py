"""What ranks have added to a metric: ids of samples, entries in order, and exact sums."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from disteval.coverage import MASK, Certificate, certify, describe_faults, name_some
from disteval.errors import CoverageError, UsageError, describe_error
from disteval.metrics.arrays import Array, Mask, Numbers, to_numpy

_FEW = 16
"""Sums up to this number travel as integers, which take fewer bytes than an array."""

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


NO_IDS = SampleRows(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass
class Ids:
    """The ids of the samples that one rank added, and the number of rows that each has.

    Attributes:
        are_kept: False checks ids alone, for a caller that proves that each occurs once.
        samples: The number of samples that have ids.
        rows: The number of their rows.
    """

    are_kept: bool = True
    samples: int = 0
    rows: int = 0
    _mixed: int = 0
    _parts: list[SampleRows] = field(default_factory=lambda: [NO_IDS])

    def check(self, ids: Any, rows: int, collected: int) -> SampleRows | None:
        """Return the ids of a batch, to be added after its rows; None if it has no ids.

        Args:
            ids: The ``ids`` of `BaseMetric.add`.
            rows: The number of rows of the batch.
            collected: The number of rows that this rank added before, with and without ids.

        Raises:
            UsageError: The ids are not integers from 0 up, do not fit the rows, or are given for
                some batches only.
        """
        if ids is None:
            if rows and self.samples:
                raise UsageError("this batch has no ids, but earlier ones had; give ids to each")
            return None
        if collected != self.rows and self.are_kept:
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

    def add(self, checked: SampleRows) -> None:
        """Add the ids that `check` returned."""
        if self.are_kept:
            proof = certify(checked.ids)
            self._parts.append(checked)
            self.samples += proof.counted
            self.rows += int(checked.rows.sum())
            self._mixed += proof.mixed

    def certificate(self) -> Certificate | None:
        """Return the proof of all ids, as it was made when they were added; None if there are none.

        So proving them takes the same time for any number.
        """
        return Certificate(self.samples, self._mixed & MASK) if self.samples else None

    def all(self) -> SampleRows:
        """Return all ids, in the order in which they were added, and the rows of each."""
        if len(self._parts) > 1:
            self._parts = [SampleRows(*map(np.concatenate, zip(*self._parts, strict=True)))]
        return self._parts[0]


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


def no_samples() -> UsageError:
    """Return the error of a metric that is computed before any rank added a sample."""
    return UsageError(
        "no samples: add() was not called on any rank, or with empty batches, as of an empty data "
        "set or with limit=0; give one sample or more"
    )


def check_collected(size: int | None, collected: int) -> None:
    """Raise UsageError if all ranks together added fewer samples than ``size``."""
    if size is not None and size > collected:
        raise UsageError(
            f"size={size}, but all ranks together added {collected} samples: "
            f"{size - collected} are missing"
        )


def all_have_ids(lengths: Sequence[int], ids: Sequence[Any]) -> bool:
    """Return whether samples have ids, or raise UsageError if those of some ranks have none.

    Args:
        lengths: The number of rows of each rank.
        ids: What each rank sent about its ids; None if it has none.
    """
    given = [rank for rank, sent in enumerate(ids) if sent is not None]
    plain = [rank for rank, rows in enumerate(lengths) if rows and ids[rank] is None]
    if given and plain:
        raise UsageError(
            f"rank {given[0]} added samples with ids and rank {plain[0]} without; "
            f"give ids to each batch on every rank"
        )
    return bool(given)


def in_order(lengths: Sequence[int], mode: str) -> Numbers:
    """Return where each entry of the data set is among those of all ranks, one rank after another.

    Args:
        lengths: The number of entries of each rank.
        mode: The order of the data set, see ``dist_collect_mode``.
    """
    if mode == "cat":
        return np.arange(sum(lengths))
    places = [np.arange(length) for length in lengths]  # of equal ones the lower rank comes first
    return np.argsort(np.concatenate(places), kind="stable")


class Once:
    """The samples that count when each id counts once: of equal ids the first, by rank.

    Args:
        shards: Each rank's ids, by rank.
        size: The number of samples in the data set; CoverageError is raised if one is missing, or
            an id is not one of these. None does not check it.

    Attributes:
        first: Where the first sample of each id is among those of all ranks, by rising id.
        repeated: Where the samples are whose ids occur more than once.
    """

    def __init__(self, shards: Sequence[Numbers], size: int | None) -> None:
        self._ids = np.concatenate(shards)
        distinct, self.first, inverse, times = np.unique(
            self._ids, return_index=True, return_inverse=True, return_counts=True
        )
        faults = describe_faults([distinct], size)
        if faults:
            raise CoverageError(
                f"all ranks together added {len(distinct)} different samples, but size={size}: "
                f"{faults}. Each sample of the data set must be added under its number, from 0 up; "
                f"look at which samples each rank adds"
            )
        self._first_alike = self.first[inverse]
        self.repeated = np.flatnonzero(times[inverse] > 1)
        self._starts = np.cumsum([0, *map(len, shards)])

    def of_rank(self, rank: int) -> tuple[Mask, Numbers]:
        """Return which of a rank's samples count, and where those with repeated ids are."""
        start, end = self._starts[rank : rank + 2]
        repeated = self.repeated[slice(*np.searchsorted(self.repeated, [start, end]))]
        return self._first_alike[start:end] == np.arange(start, end), repeated - start

    def compare(self, values: Sequence[Any]) -> None:
        """Raise CoverageError if samples with equal ids have different values.

        Args:
            values: A value for each sample whose id occurs more than once, in the order of ranks.
        """
        at = self.repeated
        first = np.searchsorted(at, self._first_alike[at])
        wrong = at[[not _same(values[i], values[k]) for i, k in enumerate(first)]]
        if len(wrong):
            found = [self._first_alike[wrong[0]], wrong[0]]
            ranks = np.searchsorted(self._starts, found, side="right") - 1
            ids = np.unique(self._ids[wrong])
            raise CoverageError(
                f"sample {self._ids[wrong[0]]} was added with one value on rank {ranks[0]} and "
                f"another on rank {ranks[1]}; {len(ids)} samples have several values "
                f"({name_some(ids)}). Let the model's result not depend on the batch or the rank, "
                f"or add each sample once"
            )


def rows_of(rows: Any, lengths: Numbers, samples: Iterable[int]) -> list[Any]:
    """Return the rows of some samples, given all rows and how many each sample has."""
    ends = np.cumsum(lengths)
    return [rows[ends[at] - lengths[at] : ends[at]] for at in samples]


def merge(shards: Sequence[Sequence[Any]], ids: Sequence[SampleRows], size: int | None) -> Any:
    """Return the entries of each id once, in the order of ids, see `Once`.

    Args:
        shards: Each rank's entries, one for each row.
        ids: Each rank's ids.
        size: The number of samples in the data set, or None.
    """
    for rank, (entries, each) in enumerate(zip(shards, ids, strict=True)):
        if len(entries) != each.rows.sum():
            raise UsageError(
                f"rank {rank} has {len(entries)} entries, but ids for {each.rows.sum()}"
            )
    once = Once([each.ids for each in ids], size)
    together = list(chain.from_iterable(shards))
    lengths = np.concatenate([each.rows for each in ids])
    once.compare(rows_of(together, lengths, once.repeated))
    if (lengths == 1).all():
        return [together[at] for at in once.first]
    return [*chain.from_iterable(rows_of(together, lengths, once.first))]


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


def sendable(sums: Array | None) -> Array | list[Any] | None:
    """Return sums as they travel, or raise UsageError if they are not an array of integers."""
    if sums is None:
        return None
    if np.ndim(sums) == 0 or sums.dtype.kind not in "iuO":
        raise UsageError(
            f"sums_of returned {getattr(sums, 'dtype', type(sums).__name__)} of shape "
            f"{np.shape(sums)}; it must return an array of integers with one axis or more, because "
            f"only integers add up to the same sum in any order"
        )
    return list(sums.tolist()) if sums.dtype.kind == "O" or sums.size <= _FEW else sums


def add_sums(one: Any, other: Any) -> Any:
    """Add sums, of which None has no rows; UsageError if shapes differ, which would broadcast.

    The sum is an array; `sendable` may have made lists of Python integers.
    """
    if isinstance(other, list):
        other = np.array(other, dtype=object)
    if one is None or other is None:
        return other if one is None else one
    if np.shape(one) != np.shape(other):
        raise UsageError(
            f"sums of shape {np.shape(one)} and of shape {np.shape(other)} can't be added; "
            f"sums_of must return one shape for any rows, and the metrics of all ranks must have "
            f"the same settings"
        )
    return one + other


def pack(entries: list[Any]) -> Any:
    """Return entries as they travel: NumPy's of one form as one array, many times faster."""
    kinds = {type(entry) for entry in entries}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is not None and (kind is np.ndarray or issubclass(kind, np.generic)):
        forms = {(entry.dtype.str, entry.shape) for entry in entries}
        if len(forms) == 1 and entries[0].dtype.kind in "biufc":
            return np.stack(entries)
    return entries


def unpack(packed: Any) -> list[Any]:
    """Return the entries that `pack` was given, with their types."""
    return list(packed.copy() if isinstance(packed, np.ndarray) else packed)

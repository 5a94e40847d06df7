"""Proof that every sample was counted exactly once, in a few bytes for each rank.

Each rank sends the number of samples that it counted and the sum of the 64-bit hashes of their ids.
Each rank also sums the hashes of one slice of the data set's ids. If a sample is missing or counted
twice, the two sums differ, except with a probability of 1 in 2**64. The hash is the finaliser of
SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.contract import BaseDistBackend
from disteval.errors import CoverageError

_SLICE = 1 << 20
_NAMED = 5
_MASK = (1 << 64) - 1


class Certificate(NamedTuple):
    """One rank's part of the proof.

    Attributes:
        counted: The number of samples that the rank counted.
        sum_counted: The sum of the hashes of their ids, modulo 2**64.
        sum_expected: The sum of the hashes of the rank's slice of the data set.
    """

    counted: int
    sum_counted: int
    sum_expected: int


class Coverage:
    """A record of the samples that one rank counts.

    Args:
        size: The number of samples in the data set.
        backend: The backend that joins the ranks.
    """

    def __init__(self, size: int, backend: BaseDistBackend) -> None:
        self._size = size
        self._backend = backend
        self._counted: list[npt.NDArray[np.int64]] = []

    def count(self, ids: npt.NDArray[np.int64]) -> None:
        """Count samples, by their indices in the data set."""
        self._counted.append(np.array(ids, dtype=np.int64))

    def certificate(self) -> Certificate:
        """Return this rank's part of the proof."""
        rank, world = self._backend.rank, self._backend.world_size
        counted = self._ids()
        first, last = (self._size * r // world for r in (rank, rank + 1))
        expected = sum(
            _mixed_sum(np.arange(start, min(start + _SLICE, last)))
            for start in range(first, last, _SLICE)
        )
        return Certificate(len(counted), _mixed_sum(counted), expected & _MASK)

    def check(self, certificates: Sequence[Certificate]) -> None:
        """Compare all ranks' certificates; every rank must call it.

        Raises:
            CoverageError: On every rank, when a sample was missed or counted more than once. Only
                then the ids are gathered, to name the samples.
        """
        counted = sum(sent.counted for sent in certificates)
        found = sum(sent.sum_counted for sent in certificates) & _MASK
        expected = sum(sent.sum_expected for sent in certificates) & _MASK
        if counted != self._size or found != expected:
            gathered = self._backend.all_gather_object(self._ids())
            raise CoverageError(_what_is_wrong(np.concatenate(gathered), self._size))

    def _ids(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.zeros(0, np.int64), *self._counted])


def _mixed_sum(ids: npt.NDArray[np.int64]) -> int:
    """Sum the hashes of the ids, modulo 2**64."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))


def _what_is_wrong(ids: npt.NDArray[np.int64], size: int) -> str:
    inside = (ids >= 0) & (ids < size)
    times = np.bincount(ids[inside], minlength=size)
    found = [
        _some("missing", np.flatnonzero(times == 0)),
        _some("counted more than once", np.flatnonzero(times > 1)),
        _some("not in the data set", np.unique(ids[~inside])),
    ]
    return (
        f"the samples were not counted exactly once: {len(ids)} were counted of {size}; "
        f"{'; '.join(filter(None, found))}. Look at how samples are distributed over ranks"
    )


def _some(what: str, ids: npt.NDArray[np.int64]) -> str:
    if not len(ids):
        return ""
    more = ", …" if len(ids) > _NAMED else ""
    return f"{len(ids)} {what} ({', '.join(map(str, ids[:_NAMED]))}{more})"

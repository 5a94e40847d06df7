"""Proof that every sample was counted exactly once, in a few bytes for each rank.

Each rank sends the number of samples that it counted and the sum of the 64-bit hashes of their ids.
If a sample is missing or was counted twice, the totals of all ranks differ from those of the data
set, except with a probability of 1 in 2**64. The hash is the finaliser of SplitMix64 (Steele, Lea
and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.contract import BaseDistBackend
from disteval.errors import CoverageError

_SLICE = 1 << 20
_NAMED = 5
MASK = (1 << 64) - 1


class Certificate(NamedTuple):
    """One rank's part of the proof.

    Attributes:
        counted: The number of samples that the rank counted.
        mixed: The sum of the hashes of their ids, modulo 2**64.
    """

    counted: int
    mixed: int


def certify(ids: npt.NDArray[np.int64]) -> Certificate:
    """Return the certificate of a rank that counted the samples with these ids."""
    return Certificate(len(ids), mixed_sum(ids))


def prove(certificates: Sequence[Certificate], size: int) -> bool:
    """Return whether all ranks together counted each id from 0 to ``size - 1`` exactly once."""
    if sum(sent.counted for sent in certificates) != size:
        return False
    return sum(sent.mixed for sent in certificates) & MASK == _expected(size)


def check_once(
    certificates: Sequence[Certificate],
    ids: npt.NDArray[np.int64],
    size: int | None,
    backend: BaseDistBackend,
) -> None:
    """Check that each sample was counted once; every rank must call it.

    Args:
        certificates: Each rank's part of the proof.
        ids: The ids that this rank counted, which are gathered if the proof fails.
        size: The number of samples in the data set; None if only repeated ids are faults.
        backend: The backend that joins the ranks.

    Raises:
        CoverageError: On every rank, when a sample was missed or counted more than once.
    """
    if size is not None and prove(certificates, size):
        return
    found = np.concatenate(backend.all_gather_object(ids))
    faults = describe_faults(found, size)
    if faults:
        of = "" if size is None else f" of {size}"
        raise CoverageError(
            f"the samples were not counted exactly once: {len(found)} were counted{of}; {faults}. "
            f"Look at how samples are distributed over ranks"
        )


def describe_faults(ids: npt.NDArray[np.int64], size: int | None) -> str:
    """Say which samples are missing, repeated or not in the data set; up to five of each kind.

    Args:
        ids: The ids that all ranks counted.
        size: The number of samples in the data set; None if only repeated ids are faults.

    Returns:
        The faults, separated by semicolons; nothing if each id was counted once.
    """
    distinct, times = np.unique(ids, return_counts=True)
    outside = np.zeros(len(distinct), dtype=bool)
    missing, some_missing = 0, distinct[:0]
    if size is not None:
        outside = (distinct < 0) | (distinct >= size)
        missing = size - int(np.count_nonzero(~outside))
        # The first numbers are enough to name some; the size may be too large for an array.
        is_missing = np.ones(min(size, len(distinct) + _NAMED), dtype=bool)
        is_missing[distinct[(distinct >= 0) & (distinct < len(is_missing))]] = False
        some_missing = np.flatnonzero(is_missing)
    repeated = distinct[(times > 1) & ~outside]
    found = [
        _some("missing", missing, some_missing),
        _some("counted more than once", len(repeated), repeated),
        _some("not in the data set", int(outside.sum()), distinct[outside]),
    ]
    return "; ".join(filter(None, found))


def name_some(ids: npt.NDArray[np.int64], count: int | None = None) -> str:
    """List the first ids, and show by an ellipsis that there are more."""
    more = ", …" if (len(ids) if count is None else count) > _NAMED else ""
    return ", ".join(map(str, ids[:_NAMED])) + more


def _some(what: str, count: int, ids: npt.NDArray[np.int64]) -> str:
    return f"{count} {what} ({name_some(ids, count)})" if count else ""


@lru_cache(maxsize=8)
def _expected(size: int) -> int:
    slices = range(0, size, _SLICE)
    sums = (mixed_sum(np.arange(at, min(at + _SLICE, size))) for at in slices)
    return sum(sums) & MASK


def mixed_sum(ids: npt.NDArray[np.int64]) -> int:
    """Sum the hashes of the ids, modulo 2**64."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))

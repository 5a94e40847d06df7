"""Proof that every sample was counted exactly once, in a few bytes for each rank.

Each rank sends the number of samples that it counted and the sum of the 64-bit hashes of their ids.
If a sample is missing or was counted twice, the totals of all ranks differ from those of the data
set, except with a probability of 1 in 2**64. The hash is the finaliser of SplitMix64 (Steele, Lea
and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from disteval.errors import CoverageError

Ids = npt.NDArray[np.int64]

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
"""How far apart the states of SplitMix64 are."""

_SLICE = 1 << 14  # so few that they stay in the cache
_BLOCK = 8192
"""The number of ids that are compressed at a time."""
_NAMED = 5  # samples in a message


class Certificate(NamedTuple):
    """One rank's part of the proof.

    Attributes:
        counted: The number of samples that the rank counted.
        mixed: The sum of the hashes of their ids, modulo 2**64.
        contents: The sum of the digests of what they hold, each mixed with its sample's id, modulo
            2**64; None if they are not known. It takes no part in the proof of numbers.
    """

    counted: int
    mixed: int
    contents: int | None = None


def certify(ids: Ids) -> Certificate:
    """Return the certificate of a rank that counted the samples with these ids."""
    return Certificate(len(ids), mixed_sum(ids))


def add_certificates(certificates: Sequence[Certificate]) -> Certificate:
    """Return the certificate of all samples that these are about."""
    mixed = sum(sent.mixed for sent in certificates) & MASK
    contents = add_contents(*(sent.contents for sent in certificates))
    return Certificate(sum(sent.counted for sent in certificates), mixed, contents)


def add_contents(*contents: int | None) -> int | None:
    """Return the sum of digests of contents, modulo 2**64; None if one is not known."""
    return None if None in contents else sum(filter(None, contents)) & MASK


def as_text(contents: int | None) -> str | None:
    """Return the digest of an evaluation as users see it."""
    return None if contents is None else f"{contents & MASK:016x}"


def prove(whole: Certificate, ids: int | Sequence[range]) -> bool:
    """Return whether all ranks together counted each id exactly once.

    Args:
        whole: What all ranks counted, see `add_certificates`.
        ids: All ids, in runs of consecutive ones; or how many there are, from 0 up.
    """
    runs = [range(ids)] if isinstance(ids, int) else ids
    if whole.counted != sum(map(len, runs)):
        return False
    return (whole.mixed - sum(_expected(run.start, run.stop) for run in runs)) & MASK == 0


@lru_cache(maxsize=8)
def _expected(start: int, stop: int) -> int:
    slices = range(start, stop, _SLICE)
    sums = (mixed_sum(np.arange(at, min(at + _SLICE, stop))) for at in slices)
    return sum(sums) & MASK


def mixed_sum(ids: Ids) -> int:
    """Sum the hashes of the ids, modulo 2**64."""
    return int(mix(ids.astype(np.uint64)).sum(dtype=np.uint64))


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the number that SplitMix64 gives in each of these states."""
    mixed: npt.NDArray[np.uint64] = numbers + np.uint64(GAMMA)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


class Counted:
    """The ids that one rank counted, in the order in which they were added.

    Ids whose differences repeat, such as 0, 3, 6, 9, … or 0, 1, 6, 7, 12, 13, …, take less than a
    tenth of a byte each. Other ids take 1 to 4 bytes, depending on the largest.

    Attributes:
        first: The first id; 0 without any.
        contents: The digest of each part of the samples, see `Certificate`, by the part's number.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._mixed = 0
        self.first = 0
        self.contents: dict[int, int | None] = {}
        self._waiting = np.empty(_BLOCK, np.int64)
        self._filled = 0

    def add(self, ids: Ids, contents: int | None = None, part: int = 0) -> None:
        """Add the samples of one batch.

        Args:
            ids: Their ids: int64 of shape (N,). They are copied.
            contents: The digest of what they hold, see `Certificate`.
            part: The number of the part that they belong to.
        """
        if len(ids):
            if not self._filled and not self._blocks:
                self.first = int(ids[0])
            self.contents[part] = add_contents(self.contents.get(part, 0), contents)
        while len(ids):
            taken = ids[: _BLOCK - self._filled]
            end = self._filled + len(taken)
            self._waiting[self._filled : end] = taken
            self._filled = end
            if end == _BLOCK:
                self._blocks.append(packed_ids(self._waiting))
                self._mixed = (self._mixed + mixed_sum(self._waiting)) & MASK
                self._filled = 0
            ids = ids[len(taken) :]

    def sealed(self) -> tuple[tuple[bytes, ...], Certificate]:
        """Return all ids, see `unpacked_ids`, and the proof that each of them was counted once."""
        rest = self._waiting[: self._filled]
        blocks = (*self._blocks, packed_ids(rest)) if self._filled else tuple(self._blocks)
        count = len(self._blocks) * _BLOCK + self._filled
        mixed = (self._mixed + mixed_sum(rest)) & MASK
        return blocks, Certificate(count, mixed, add_contents(*self.contents.values()))


def packed_ids(ids: Ids) -> bytes:
    """Return ids as bytes: their differences, compressed byte by byte of their numbers."""
    steps = np.diff(ids, prepend=np.int64(0))
    planes = np.ascontiguousarray(steps.view(np.uint8).reshape(len(ids), 8).T)
    return zlib.compress(planes.tobytes(), 1)


def unpacked_ids(blocks: tuple[bytes, ...]) -> Ids:
    """Return the ids of some blocks that `packed_ids` made: int64 of shape (N,)."""
    found = [np.zeros(0, np.int64)]
    for block in blocks:
        planes = np.frombuffer(zlib.decompress(block), np.uint8).reshape(8, -1)
        found.append(np.cumsum(np.ascontiguousarray(planes.T).view(np.int64).ravel()))
    return np.concatenate(found)


def fault_of(shards: Sequence[Ids], ids: int | Sequence[range]) -> CoverageError:
    """Return the error of samples that were not counted exactly once.

    Args:
        shards: The ids that each rank counted, by rank.
        ids: All ids, in runs of consecutive ones; or how many there are, from 0 up.
    """
    size = ids
    if not isinstance(ids, int):
        shards, size = [_places(each, ids) for each in shards], sum(map(len, ids))
    assert isinstance(size, int)
    faults = describe_faults(shards, size) or "the proof failed; please report this"
    return not_once(sum(map(len, shards)), size, faults)


def _places(ids: Ids, runs: Sequence[range]) -> Ids:
    """Return each id's place in the runs, or -1 if it is in none of them."""
    starts, lengths = np.array([run.start for run in runs]), np.array([len(run) for run in runs])
    run = np.searchsorted(starts, ids, side="right") - 1
    within = ids - starts[run]
    found: Ids = np.where(within < lengths[run], (np.cumsum(lengths) - lengths)[run] + within, -1)
    return found


def not_once(counted: int, size: int | None, faults: str) -> CoverageError:
    """Return the error of samples that all ranks together did not count exactly once."""
    of = "" if size is None else f" of {size}"
    return CoverageError(
        f"the samples were not counted exactly once: {counted} were counted{of}; {faults}. "
        f"Look at how samples are distributed over ranks"
    )


def describe_faults(shards: Sequence[Ids], size: int | None) -> str:
    """Say which samples are missing, repeated or not in the data set; up to five of each kind.

    Args:
        shards: The ids that each rank counted, by rank.
        size: The number of samples in the data set; None if only repeated ids are faults.

    Returns:
        The faults, separated by semicolons; nothing if each id was counted once.
    """
    distinct, times = np.unique(np.concatenate(shards), return_counts=True)
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
        _some("counted more than once", len(repeated), repeated) + _where(repeated[:1], shards),
        _some("not in the data set", int(outside.sum()), distinct[outside]),
    ]
    return "; ".join(filter(None, found))


def name_some(ids: Ids, count: int | None = None) -> str:
    """List the first ids, and show by an ellipsis that there are more."""
    more = ", …" if (len(ids) if count is None else count) > _NAMED else ""
    return ", ".join(map(str, ids[:_NAMED])) + more


def _some(what: str, count: int, ids: Ids) -> str:
    return f"{count} {what} ({name_some(ids, count)})" if count else ""


def _where(repeated: Ids, shards: Sequence[Ids]) -> str:
    """Say how often each rank counted the first of the repeated samples."""
    if not len(repeated):
        return ""
    times = [int(np.count_nonzero(ids == repeated[0])) for ids in shards]
    ranks = np.repeat(np.arange(len(shards)), times)
    return f", of which {repeated[0]} on ranks {name_some(ranks)}"

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

_SLICE = 1 << 14  # so few that they stay in the cache
MASK = (1 << 64) - 1

GAMMA = 0x9E3779B97F4A7C15
"""How far apart the states of SplitMix64 are."""


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

    @property
    def numbers(self) -> tuple[int, int]:
        """What proves the numbers of the samples."""
        return self.counted, self.mixed


def certify(ids: npt.NDArray[np.int64]) -> Certificate:
    """Return the certificate of a rank that counted the samples with these ids."""
    return Certificate(len(ids), mixed_sum(ids))


def add_certificates(certificates: Sequence[Certificate]) -> Certificate:
    """Return the certificate of all samples that these are about."""
    mixed = sum(sent.mixed for sent in certificates) & MASK
    contents: int | None = 0
    for sent in certificates:
        contents = add_contents(contents, sent.contents)
    return Certificate(sum(sent.counted for sent in certificates), mixed, contents)


def add_contents(one: int | None, other: int | None) -> int | None:
    """Return the sum of two digests of contents, modulo 2**64; None if one is not known."""
    return None if one is None or other is None else (one + other) & MASK


def prove(certificates: Sequence[Certificate], ids: int | Sequence[range]) -> bool:
    """Return whether all ranks together counted each id exactly once.

    Args:
        certificates: What each rank counted.
        ids: All ids, in runs of consecutive ones; or how many there are, from 0 up.
    """
    runs = [range(ids)] if isinstance(ids, int) else ids
    if sum(sent.counted for sent in certificates) != sum(map(len, runs)):
        return False
    expected = sum(_expected(run.start, run.stop) for run in runs)
    return (sum(sent.mixed for sent in certificates) - expected) & MASK == 0


@lru_cache(maxsize=8)
def _expected(start: int, stop: int) -> int:
    slices = range(start, stop, _SLICE)
    sums = (mixed_sum(np.arange(at, min(at + _SLICE, stop))) for at in slices)
    return sum(sums) & MASK


def mixed_sum(ids: npt.NDArray[np.int64]) -> int:
    """Sum the hashes of the ids, modulo 2**64."""
    return int(mix(ids.astype(np.uint64)).sum(dtype=np.uint64))


def mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the number that SplitMix64 gives in each of these states."""
    mixed: npt.NDArray[np.uint64] = numbers + np.uint64(GAMMA)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed

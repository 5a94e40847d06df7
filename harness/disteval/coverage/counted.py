"""The ids that one rank counted, in memory that does not grow with regular ids."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from disteval.coverage.proof import MASK, Certificate, add_contents, mixed_sum

Ids = npt.NDArray[np.int64]

_BLOCK = 8192
"""The number of ids that are compressed at a time."""


class Counted:
    """The ids that one rank counted, in the order in which they were added.

    Ids whose differences repeat, such as 0, 3, 6, 9, … or 0, 1, 6, 7, 12, 13, …, take less than a
    tenth of a byte each. Other ids take 1 to 4 bytes, depending on the largest.

    Args:
        ids: The first ids.
    """

    def __init__(self, ids: Ids | None = None) -> None:
        self._blocks: list[bytes] = []
        self._mixed = 0
        self._contents: int | None = 0
        self._waiting = np.empty(_BLOCK, np.int64)
        self._filled = 0
        if ids is not None:
            self.add(ids)

    def __len__(self) -> int:
        """Return how many ids were added; an id that was added twice counts twice."""
        return len(self._blocks) * _BLOCK + self._filled

    def add(self, ids: Ids, contents: int | None = None) -> None:
        """Add the samples of one batch.

        Args:
            ids: Their ids: int64 of shape (N,). They are copied.
            contents: The digest of what they hold, see `Certificate`.
        """
        if len(ids):
            self._contents = add_contents(self._contents, contents)
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

    def certificate(self) -> Certificate:
        """Return this rank's part of the proof that every sample was counted once."""
        waiting = mixed_sum(self._waiting[: self._filled])
        return Certificate(len(self), (self._mixed + waiting) & MASK, self._contents)

    def packed(self) -> tuple[bytes, ...]:
        """Return all ids, see `unpacked_ids`."""
        rest = self._waiting[: self._filled]
        return (*self._blocks, packed_ids(rest)) if self._filled else tuple(self._blocks)

    def all(self) -> Ids:
        """Return all ids as one array, in the order in which they were added."""
        return unpacked_ids(self.packed())


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

"""Batches of a stream that are made by length, within a bounded number of its elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from disteval.data.batching import Indices
from disteval.data.by_length import plan_by_length
from disteval.data.length_of import ByLength, length_of_sample

BATCHES = 64
"""The number of full batches whose elements are read before the first of them is made."""


class Windows:
    """One rank's batches of the elements that it is given, in windows of `BATCHES` full batches.

    If every rank is given the same elements, a batch holds the same ones at any world size, because
    a window does not depend on it.

    Args:
        rank: The rank.
        world_size: The number of ranks that are given the same elements.
        batch_size: The most samples in a batch.
        by_length: How batches are made.
    """

    def __init__(self, rank: int, world_size: int, batch_size: int, by_length: ByLength) -> None:
        self._rank, self._batch_size, self._by = rank, batch_size, by_length
        self._measure = by_length.measure()
        self._loads = [0] * world_size
        self._ids: list[int] = []
        self._lengths: list[int] = []
        self._samples: list[Any] = []
        self._snapshots: list[bytes] = []

    def add(
        self, number: int, sample: Any, snapshot: bytes
    ) -> Iterator[tuple[Indices, list[Any], list[bytes]]]:
        """Take an element, and yield this rank's batches if the window is full.

        Raises:
            UsageError: Its length is no whole number from 0 to 2**40, or exceeds ``max_tokens``.
            SampleError: The function ``length`` failed.
        """
        self._lengths.append(length_of_sample(sample, number, self._measure))
        self._ids.append(number)
        self._samples.append(sample)
        self._snapshots.append(snapshot)
        if len(self._ids) == BATCHES * self._batch_size:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[Indices, list[Any], list[bytes]]]:
        """Yield this rank's batches of the elements that are left, and begin another window."""
        ids, samples, snapshots = np.array(self._ids, np.int64), self._samples, self._snapshots
        lengths = np.array(self._lengths, np.int64)
        self._ids, self._lengths, self._samples, self._snapshots = [], [], [], []
        plan = plan_by_length(
            lengths, len(self._loads), self._rank, self._batch_size, sort=self._by.sort,
            max_tokens=self._by.max_tokens, pad=False, numbers=ids, loads=self._loads,
        )  # fmt: skip
        for picked in plan:
            places = picked.indices.tolist()
            yield ids[picked.indices], [samples[i] for i in places], [snapshots[i] for i in places]

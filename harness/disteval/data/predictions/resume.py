"""The batches of an evaluation that goes on, of which some samples have outputs already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from disteval.data.batching import Indices, Picked, Plan, WholeBatches, filled_rows
from disteval.data.by_length import LengthBatches


@dataclass(frozen=True)
class ListedBatches:
    """Batches in a list.

    Attributes:
        batches: The batches of this rank.
    """

    batches: list[Picked]

    @property
    def ids(self) -> Indices:
        """The numbers of the samples that count."""
        counted = [picked.indices[: picked.counted] for picked in self.batches]
        return np.concatenate([np.zeros(0, np.int64), *counted])

    @property
    def samples(self) -> int:
        """The number of samples, padding included."""
        return sum(len(picked.indices) for picked in self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Picked]:
        return iter(self.batches)

    def between(self, first: int, last: int) -> Iterator[Picked]:
        """Yield some batches, see `Plan`."""
        return iter(self.batches[first:last])


def resumed(
    plan: WholeBatches | LengthBatches,
    stored: Indices,
    size: int,
    world_size: int,
    rank: int,
    *,
    pad: bool,
) -> tuple[ListedBatches, ListedBatches]:
    """Return the batches of one rank: those of stored samples, and those to be computed.

    Each batch is parted into its stored samples and the others. With the batch size of before it
    stays whole, as models need whose outputs depend on the batch.

    Args:
        plan: The batches of this rank if nothing were stored.
        stored: The samples that are stored.
        size: The number of samples.
        world_size: The number of ranks.
        rank: The rank.
        pad: Whether every rank computes equally many batches.
    """
    is_stored = np.zeros(size, np.bool_)
    is_stored[stored[stored < size]] = True
    done: list[Picked] = []
    left: list[Picked] = []
    for picked in _of_all(plan):
        which = is_stored[picked.indices]
        for batches, ids in ((done, picked.indices[which]), (left, picked.indices[~which])):
            if len(ids):
                rows = filled_rows(len(ids), plan.batch_size, plan.step)
                batches.append(Picked(ids, len(ids), rows))
    mine = left[rank::world_size]
    if pad and len(mine) < -(-len(left) // world_size):
        mine.append(left[-1]._replace(counted=0))
    return ListedBatches(done[rank::world_size]), ListedBatches(mine)


def _of_all(plan: WholeBatches | LengthBatches) -> Plan:
    """Return the batches of all ranks."""
    if isinstance(plan, WholeBatches):
        return replace(plan, world_size=1, rank=0, pad=False)
    count = len(plan.bounds) - 1
    return replace(plan, mine=np.arange(count), counted=count)


def parted(
    batches: Iterable[tuple[Indices, list[Any], list[bytes]]], stored: Indices
) -> Iterator[tuple[Indices, list[Any], list[bytes], bool]]:
    """Part each batch of a rank into its stored elements and the others.

    Args:
        batches: The elements' global numbers, the elements, and their snapshots.
        stored: The stored elements' numbers, sorted.

    Yields:
        Numbers, elements and snapshots, and whether these are stored.
    """
    for ids, elements, snapshots in batches:
        place = np.searchsorted(stored, ids)  # which takes no time for each stored element
        is_stored = stored[np.minimum(place, len(stored) - 1)] == ids
        for which in (True, False):
            at = np.flatnonzero(is_stored == which)
            if len(at):
                yield ids[at], [elements[i] for i in at], [snapshots[i] for i in at], which

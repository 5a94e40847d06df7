"""The batches of an evaluation that goes on, of which some samples have outputs already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.data.batching import GivenBatches, Indices, Picked, Plan, WholeBatches, filled_rows
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
    plan: Plan,
    stored: Indices,
    size: int,
    world_size: int,
    rank: int,
    batch_size: int,
    *,
    step: int,
    pad: bool,
) -> tuple[ListedBatches, ListedBatches]:
    """Return the batches of one rank: those of stored samples, and those to be computed.

    Whole batches that ranks get in turn stay as they are, for the outputs of some models depend on
    the batch: one is computed again if any of its samples is not stored. Other batches hold stored
    samples alone, or none of them.

    Args:
        plan: The batches of this rank if nothing were stored.
        stored: The samples that are stored.
        size: The number of samples.
        world_size: The number of ranks.
        rank: The rank.
        batch_size: The number of samples in a batch.
        step: The number of rows of which each batch has a multiple, see `filled_rows`.
        pad: Whether every rank computes equally many batches.
    """
    is_stored = np.zeros(size, np.bool_)
    is_stored[stored[stored < size]] = True
    if isinstance(plan, GivenBatches):
        own = np.asarray(plan.shard.indices)[~np.asarray(plan.shard.is_padding)]
        done = _cut(own[is_stored[own]], batch_size, step)
        return ListedBatches(done), ListedBatches(_cut(own[~is_stored[own]], batch_size, step))
    if isinstance(plan, WholeBatches | LengthBatches):
        done, left = _whole(plan, is_stored)
    else:
        done = _cut(np.flatnonzero(is_stored), batch_size, step)
        left = _cut(np.flatnonzero(~is_stored), batch_size, step)
    mine = left[rank::world_size]
    if pad and len(mine) < -(-len(left) // world_size):
        mine.append(left[-1]._replace(counted=0))
    return ListedBatches(done[rank::world_size]), ListedBatches(mine)


def _whole(
    plan: WholeBatches | LengthBatches, is_stored: npt.NDArray[np.bool_]
) -> tuple[list[Picked], list[Picked]]:
    """Return the batches of all ranks: those that are stored whole, and the others."""
    every: Plan
    if isinstance(plan, WholeBatches):
        every = replace(plan, world_size=1, rank=0, pad=False)
    else:
        count = len(plan.bounds) - 1
        every = replace(plan, mine=np.arange(count), counted=count)
    done: list[Picked] = []
    left: list[Picked] = []
    for picked in every:
        (done if is_stored[picked.indices].all() else left).append(picked)
    return done, left


def _cut(ids: Indices, batch_size: int, step: int) -> list[Picked]:
    pieces = [ids[start : start + batch_size] for start in range(0, len(ids), batch_size)]
    return [
        Picked(piece, len(piece), filled_rows(len(piece), batch_size, step)) for piece in pieces
    ]


def parted(
    batches: Iterable[tuple[Indices, list[Any], list[bytes]]],
    stored: Indices,
    batch_size: int,
    *,
    whole: bool,
) -> Iterator[tuple[Indices, list[Any], list[bytes], bool]]:
    """Part a rank's elements of a stream into batches of stored elements and of others.

    Args:
        batches: The elements' global numbers, the elements, and their snapshots.
        stored: The stored elements' numbers, sorted.
        batch_size: The number of elements in a batch.
        whole: Whether batches stay as they are, see `resumed`.

    Yields:
        Numbers, elements and snapshots, and whether these are stored.
    """
    waiting: dict[bool, tuple[list[int], list[Any], list[bytes]]]
    waiting = {True: ([], [], []), False: ([], [], [])}
    for ids, elements, snapshots in batches:
        place = np.searchsorted(stored, ids)  # which takes no time for each stored element
        is_stored = stored[np.minimum(place, len(stored) - 1)] == ids
        if whole:
            yield ids, elements, snapshots, bool(is_stored.all())
            continue
        found = zip(ids.tolist(), elements, snapshots, is_stored.tolist(), strict=True)
        for number, element, snapshot, which in found:
            numbers, kept, taken = waiting[which]
            numbers.append(number)
            kept.append(element)
            taken.append(snapshot)
            if len(kept) == batch_size:
                yield np.array(numbers, np.int64), kept, taken, which
                waiting[which] = [], [], []
    for which, (numbers, kept, taken) in waiting.items():
        if kept:
            yield np.array(numbers, np.int64), kept, taken, which

"""The proof that all ranks have read the same stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disteval.contract import BaseDistBackend
from disteval.data.contents import SHARD_BITS, Elements
from disteval.data.streams import Note, Stream
from disteval.errors import UsageError

_FRESH = (
    "an iterator, such as a generator or an open file, yields its elements once; give a function "
    "that returns a fresh one, such as lambda: open(path)"
)
_ALIKE = (
    "Give every rank the same whole stream in the same order: not one that is split already, as by "
    "split_dataset_by_node, and shuffled with the same seed or not at all; evaluate takes each "
    "rank's share of it. Or give a disteval.data.ShardedStream"
)


def check_streams(notes: Sequence[Note], stream: Stream, backend: BaseDistBackend) -> list[range]:
    """Check that all ranks have read the same stream; every rank must call it.

    Args:
        notes: Each rank's `Stream.note`, by rank.
        stream: This rank's stream.
        backend: The backend that joins the ranks. It is used only where streams differ.

    Returns:
        The global numbers of all elements, as one range for each part of the stream.

    Raises:
        UsageError: On every rank, when streams differ or have no elements. It says from which
            element on they differ, as exactly as is known.
    """
    first = notes[0]
    for rank, note in enumerate(notes):
        if (note.shards, note.names) != (first.shards, first.names):
            raise UsageError(_different_shards(notes, rank, stream, backend))
        of_all = stream.elements is not None
        if of_all and (note.counts, note.contents) != (first.counts, first.contents):
            raise UsageError(_different_elements(rank, stream, backend))
    counts = {part: count for note in notes for part, count in note.counts.items()}
    check_has_elements(counts)
    return runs_of_elements(counts)


def check_has_elements(counts: Mapping[int, int]) -> None:
    """Raise UsageError if no part of a stream has an element."""
    if not any(counts.values()):
        raise UsageError(f"the stream has no elements; {_FRESH}")


def runs_of_elements(counts: Mapping[int, int]) -> list[range]:
    """Return the global numbers of all elements, as one range for each part of the stream.

    Args:
        counts: The number of elements of each part.
    """
    return [
        range(part << SHARD_BITS, (part << SHARD_BITS) + count)
        for part, count in sorted(counts.items())
    ]


def _different_shards(
    notes: Sequence[Note], rank: int, stream: Stream, backend: BaseDistBackend
) -> str:
    mine = [] if stream.sharded is None else stream.sharded.shards
    names = backend.all_gather_object([f"{str(shard)!r:.200}" for shard in mine])
    one, other = names[0], names[rank]
    found = " and ".join(
        f"{'no shards' if notes[r].shards is None else f'{notes[r].shards} shards'} on rank {r}"
        for r in (0, rank)
    )
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is not None:
        found += f"; shard {at} is {one[at]} on rank 0 and {other[at]} on rank {rank}"
    return (
        f"the shards of the stream differ between ranks: there are {found}. Give every rank the "
        f"same shards in the same order, as by sorted(…)"
    )


def _different_elements(rank: int, stream: Stream, backend: BaseDistBackend) -> str:
    elements = stream.elements or Elements()
    sums = {**elements.sums(), elements.count: elements.total()}
    gathered = backend.all_gather_object((elements.count, sums))
    (size, one), (other_size, other) = gathered[0], gathered[rank]
    both = sorted(one.keys() & other.keys())
    equal = max((n for n in both if one[n] == other[n]), default=0)
    unequal = min((n for n in both if one[n] != other[n]), default=None)
    ends = min(size, other_size)
    if equal == ends:
        where = f"its first {equal} elements are the same on both"
    elif unequal == equal + 1:
        where = f"element {equal} is the first that differs"
    else:
        last = ends if unequal is None else unequal - 1
        where = f"the first element that differs is one of {equal} to {last}"
    return (
        f"the stream differs between ranks: it has {size} elements on rank 0 and {other_size} on "
        f"rank {rank}, and {where}. {_ALIKE}"
    )

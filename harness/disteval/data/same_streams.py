"""The proof that all ranks have read the same stream, and that it is the one of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disteval.contract import BaseDistBackend
from disteval.data.contents import SHARD_BITS, Elements
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


def check_streams(
    notes: Sequence[tuple[Mapping[int, int], int | None]],
    elements: Elements,
    backend: BaseDistBackend,
) -> int:
    """Check that all ranks have read the same stream; every rank must call it.

    Args:
        notes: The number of elements of each part that a rank has read, and the digest of all, by
            rank.
        elements: Those of this rank.
        backend: The backend that joins the ranks. It is used only where streams differ.

    Returns:
        The number of elements whose contents were compared.

    Raises:
        UsageError: On every rank, when streams differ. It says from which element on they differ,
            as exactly as is known.
    """
    lengths, contents = notes[0]
    rank = next((rank for rank, note in enumerate(notes) if note != notes[0]), None)
    if rank is None:
        return 0 if contents is None else sum(lengths.values())
    gathered = backend.all_gather_object((elements.count, elements.sums()))
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
    raise UsageError(
        f"the stream differs between ranks: it has {size} elements on rank 0 and {other_size} on "
        f"rank {rank}, and {where}. {_ALIKE}"
    )


def runs_of_elements(lengths: Mapping[int, int]) -> list[range]:
    """Return the global numbers of all elements, as one range for each part of the stream.

    Args:
        lengths: The number of elements of each part.

    Raises:
        UsageError: No part has an element.
    """
    if not any(lengths.values()):
        raise UsageError(f"the stream has no elements; {_FRESH}")
    return [
        range(part << SHARD_BITS, (part << SHARD_BITS) + count)
        for part, count in sorted(lengths.items())
    ]

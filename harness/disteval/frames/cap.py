"""The cap on the size of an object that is sent or received."""

from __future__ import annotations

from disteval.arguments import check_count
from disteval.errors import FrameError

_max_object_bytes = 4 << 30


def max_object_bytes() -> int:
    """Return the size of the largest object that this process sends or allocates memory for."""
    return _max_object_bytes


def configure(*, max_object_bytes: int) -> None:
    """Set the cap in this process; every rank needs the same one.

    Args:
        max_object_bytes: The cap in bytes, from 1 up. It is checked before an object is sent, and
            before memory is allocated for an object that another rank announces.

    Raises:
        UsageError: The cap is not a positive integer.
    """
    global _max_object_bytes
    _max_object_bytes = check_count("max_object_bytes", max_object_bytes)


def check_size(size: int, rank: int) -> None:
    """Refuse the size of an object that another rank announces, before memory is allocated for it.

    Raises:
        FrameError: The size is over the cap.
    """
    if size > _max_object_bytes:
        raise FrameError(
            f"rank {rank} announced {size} bytes, over the cap of {_max_object_bytes}; raise "
            f"max_object_bytes with disteval.frames.configure on every rank to receive them"
        )

"""Objects to frames and back, and the errors that travel in place of an object.

The body of a frame is a pickle of protocol 5, and the memory of large arrays follows it uncopied.
When the sender cannot serialise its object, the body is the reason instead. So every rank learns of
the error, and no rank waits in a collective that the sender never entered.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import Any

from disteval.arguments import check_count
from disteval.errors import FrameError, RankError
from disteval.frames import layout
from disteval.frames.layout import BLOCK_BYTES, NO_CALL, Buffer, Call, Header, Parts

OUT_OF_BAND_BYTES = 4096
"""Arrays from this size on travel beside the body, uncopied."""

_REASON_LENGTH = 2000
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


def encode(obj: Any, call: Call = NO_CALL, rank: int = 0) -> bytearray:
    """Serialise an object into one frame; what the object is never makes this raise.

    Args:
        obj: Any object. One that cannot be serialised, or is over the cap, becomes a frame that
            raises `RankError` on every rank that decodes it.
        call: The collective that the frame belongs to.
        rank: The rank that sends the frame.

    Returns:
        The frame with its block; `BLOCK_BYTES` or more.
    """
    block, rest = split(obj, call, rank)
    frame = bytearray(block)
    frame += rest
    return frame


def split(obj: Any, call: Call = NO_CALL, rank: int = 0) -> Parts:
    """Serialise an object as `encode` does, in two parts, without copying a large array."""
    body, memories, reason = _pickled(obj)
    if reason:
        return layout.assemble(layout.FAILURE, reason.encode(errors="replace"), [], call, rank)
    return layout.assemble(layout.PICKLE, body, memories, call, rank)


def copied(obj: Any) -> Any:
    """Return an object as `split` and `decode_parts` would, for a rank that is alone.

    Raises:
        FrameError, RankError: See `decode`.
    """
    body, memories, reason = _pickled(obj)
    if reason:
        raise RankError(0, reason)
    return _load(body, [memoryview(bytearray(memory)) for memory in memories], 0)


def _pickled(obj: Any) -> tuple[bytes, list[memoryview], str]:
    """Return an object's pickle, the memories beside it, and why there is no pickle, if so."""
    memories: list[memoryview] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if len(memory) < OUT_OF_BAND_BYTES or len(memories) == layout.MAX_MEMORIES:
            return True
        memories.append(memory)
        return False

    try:
        body = pickle.dumps(obj, 5, buffer_callback=keep_inside)
        size = len(body) + sum([len(each) + 8 + layout.ALIGNMENT for each in memories])  # at most
        if size <= max_object_bytes():
            return body, memories, ""
        reason = (
            f"would send {size} bytes, over the cap of {max_object_bytes()}; raise "
            f"max_object_bytes with disteval.frames.configure"
        )
    # A __reduce__ may raise anything, and memory may end; the other ranks must be told.
    except Exception as error:
        reason = f"could not serialise its object of type {type(obj).__qualname__}: "
        reason += _describe(error)
    return b"", [], reason[:_REASON_LENGTH]


def read_header(block: Buffer, rank: int, call: Call | None = None) -> Header:
    """Read what a block says about its frame, before memory is allocated for the rest of it.

    Args:
        block: The first `BLOCK_BYTES` of a frame, or more of it.
        rank: The rank that sent it.
        call: The collective that the frame must belong to; None accepts any.

    Raises:
        FrameError: The bytes are not a block of that rank and ``call``, their tag is wrong, or they
            announce an object over the cap.
    """
    header = layout.read_header(block, rank, call)
    if header.rest:
        check_size(header.rest, rank)
    return header


def decode(frame: Buffer, rank: int, call: Call | None = None) -> Any:
    """Rebuild the object of a whole frame.

    Args:
        frame: The frame and nothing more. Large arrays become views of this memory where it is
            writable, so it belongs to them from here on.
        rank: The rank that sent the frame.
        call: The collective that the frame must belong to; None accepts any.

    Raises:
        FrameError: The bytes are not a frame of that rank and ``call``, their tag is wrong, or the
            object cannot be rebuilt here.
        RankError: The sender could not serialise its object.
    """
    view = memoryview(frame)
    header = read_header(view, rank, call)
    return decode_parts(header, view[:BLOCK_BYTES], view[BLOCK_BYTES:], rank)


def decode_parts(header: Header, block: Buffer, rest: Buffer, rank: int) -> Any:
    """Rebuild the object of a frame that came in two parts, as `decode` does.

    Args:
        header: What `read_header` read from the block.
        block: The frame's first `BLOCK_BYTES`.
        rest: The bytes that follow the block. Large arrays become views of this memory where it is
            writable.
        rank: The rank that sent the frame, for messages.
    """
    body, memories = layout.take_apart(header, block, rest, rank)
    if header.kind == layout.FAILURE:
        raise RankError(rank, str(body, "utf-8", "replace"))
    return _load(body, memories, rank)


def decode_small(blocks: Sequence[Buffer], call: Call) -> list[Any] | None:
    """Rebuild the objects of blocks from ranks 0, 1, …; None unless each block holds all of one."""
    bodies = []
    for rank, block in enumerate(blocks):
        body = layout.small_body(block, rank, call)
        if body is None:
            return None
        bodies.append(body)
    return [_load(body, (), rank) for rank, body in enumerate(bodies)]


def _load(body: Any, memories: Sequence[memoryview], rank: int) -> Any:
    try:
        return pickle.loads(body, buffers=memories)
    except Exception as error:
        reason = _describe(error)
        raise FrameError(f"the object of rank {rank} can't be rebuilt here: {reason}") from error


def _describe(error: BaseException) -> str:
    # Not str(error): an exception's own __str__ may raise.
    return "".join(traceback.format_exception_only(error)).strip()

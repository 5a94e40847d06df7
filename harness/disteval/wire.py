"""The layout of a frame; what travels in it is `disteval.framing`'s business.

A block of `BLOCK_BYTES`: the header, its checksum, and the body if it fits there. Then, if it does
not, the body; and the memories, each from a multiple of 64 bytes on. A body of an object with
memories begins with their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from disteval.errors import FrameError, IncompleteFrameError

BLOCK_BYTES = 512
"""The length of a frame's block, and of every frame whose object fits there."""

MAX_MEMORIES = 1000
"""How many memories a frame may have."""

PICKLE, PLAIN, ERROR = 0, 1, 2

# magic, checksum of all that follows and the body; version, kind, memories, operation, sequence,
# bytes of the body, bytes of the frame
_HEADER = struct.Struct("<4sIBBHIQQQ")
_CHECKED = struct.Struct("<BBHIQQQ")
_CHECKED_AT = _HEADER.size - _CHECKED.size
_BODY_AT = _HEADER.size
INLINE_BYTES = BLOCK_BYTES - _BODY_AT
"""The longest body that fits a block."""

_MAGIC = b"DEHF"
_VERSION = 2
_SMALL_PICKLE = (_VERSION, PICKLE, 0, BLOCK_BYTES, _MAGIC)
ALIGNMENT = 64
"""Of the memory that holds arrays, in bytes."""

Buffer = bytes | bytearray | memoryview


class Call(NamedTuple):
    """Which collective of its group a frame belongs to.

    Attributes:
        sequence: The collective's number, from 1 up; 0 for a frame of none.
        operation: 0 for an all-gather, src + 1 for a broadcast from src.
    """

    sequence: int = 0
    operation: int = 0

    def __str__(self) -> str:
        if not self.sequence:
            return "no numbered collective"
        src = self.operation - 1
        name = "all_gather_object" if src < 0 else f"broadcast_object from {src}"
        return f"{name} #{self.sequence}"


NO_CALL = Call()
"""Of frames that belong to no numbered collective."""


class Parts(NamedTuple):
    """A frame in two parts, so that memory need not be copied to be sent.

    Attributes:
        block: Its first `BLOCK_BYTES`.
        rest: What follows them, flat; of one large array this is the array's own memory.
    """

    block: bytes
    rest: Buffer


class Header(NamedTuple):
    """What a block says of its frame: sizes are in bytes, ``size`` is the whole frame's."""

    checksum: int
    kind: int
    memories: int
    call: Call
    body: int
    size: int


def laid_out_size(body: bytes, memories: Sequence[memoryview]) -> int:
    """Return the most that body and memories take behind the block, in bytes."""
    return len(body) + sum(len(memory) + 8 + ALIGNMENT for memory in memories)


def assemble(kind: int, body: bytes, memories: Sequence[memoryview], call: Call) -> Parts:
    """Lay out a frame; of a body that fits the block and one memory, nothing is copied."""
    body = b"".join([len(memory).to_bytes(8, "little") for memory in memories] + [body])
    pieces = [*memories] if len(body) <= INLINE_BYTES else [memoryview(body), *memories]
    rest: Buffer = pieces[0] if len(pieces) == 1 else _joined(pieces)
    return Parts(block(kind, len(memories), call, body, BLOCK_BYTES + len(rest)), rest)


def read_header(view: memoryview, rank: int, call: Call | None = None) -> Header:
    """Read a block's header.

    Raises:
        FrameError: It is none, its sizes can't be, or it belongs to another call.
    """
    if len(view) < BLOCK_BYTES:
        raise FrameError(f"rank {rank} sent {len(view)} bytes, less than a block of {BLOCK_BYTES}")
    magic, checksum, version, kind, count, operation, sequence, body, size = _HEADER.unpack_from(
        view
    )
    if magic != _MAGIC or version != _VERSION or kind > ERROR:
        raise FrameError(
            f"rank {rank} sent bytes that are no frame of version {_VERSION}: "
            f"they begin with {bytes(view[:8]).hex(' ')}"
        )
    found = Call(sequence, operation)
    if call is not None and found != call:
        raise mispaired(found, call, rank)
    outside = body if body > INLINE_BYTES else 0
    if size < BLOCK_BYTES + outside or count > MAX_MEMORIES or body < 8 * count:
        raise FrameError(f"rank {rank} sent a frame whose sizes can't be: {body} in {size} bytes")
    return Header(checksum, kind, count, found, body, size)


def body_of_small_pickle(blocks: bytearray, start: int, call: Call) -> bytearray | None:
    """Return the body of the block at ``start``, where it is a whole pickle of this call.

    The way of nearly all frames, in as few steps as there can be; anything else is None, for
    `read_header` and `take_apart` to find out.
    """
    magic, checksum, version, kind, count, operation, sequence, size, frame = _HEADER.unpack_from(
        blocks, start
    )
    if (
        (version, kind, count, frame, magic) == _SMALL_PICKLE
        and (sequence, operation) == call
        and size <= INLINE_BYTES
        and crc32(blocks[start + _CHECKED_AT : start + _BODY_AT + size]) == checksum
    ):
        return blocks[start + _BODY_AT : start + _BODY_AT + size]
    return None


def mispaired(found: Call, call: Call, rank: int) -> FrameError:
    """Make the error of a frame that came in a collective which it does not belong to."""
    return FrameError(
        f"collectives are mispaired: this rank is in {call}, and rank {rank} in {found}"
    )


def take_apart(
    header: Header, block: memoryview, rest: memoryview, rank: int
) -> tuple[memoryview, list[memoryview]]:
    """Return the body, and the memories as writable views of what came, or copies of it.

    Raises:
        IncompleteFrameError: ``rest`` is only the beginning of what follows the block.
        FrameError: Sizes do not fit, or the checksum is wrong.
    """
    came = BLOCK_BYTES + len(rest)
    if came != header.size:
        what = f"rank {rank} announced a frame of {header.size} bytes, but {came} came"
        raise IncompleteFrameError(what, header.size) if came < header.size else FrameError(what)
    inline = header.body <= INLINE_BYTES
    body = block[_BODY_AT : _BODY_AT + header.body] if inline else rest[: header.body]
    if header.checksum != crc32(body, crc32(block[_CHECKED_AT:_BODY_AT])):
        raise FrameError(f"rank {rank} sent a frame that came damaged: its checksum is wrong")
    if not header.memories:
        return body, []
    table = 8 * header.memories
    memories = _memories(body[:table], rest, 0 if inline else header.body, rank)
    return body[table:], memories


def block(kind: int, count: int, call: Call, body: bytes, size: int) -> bytes:
    """Write a block, with the body where it fits there."""
    checked = _CHECKED.pack(_VERSION, kind, count, call[1], call[0], len(body), size)
    checksum = crc32(body, crc32(checked)).to_bytes(4, "little")
    inline = body if len(body) <= INLINE_BYTES else b""
    return (_MAGIC + checksum + checked + inline).ljust(BLOCK_BYTES, b"\0")


def _joined(pieces: Sequence[memoryview]) -> bytearray:
    size = 0
    for piece in pieces:
        size = _aligned(size) + len(piece)
    joined, start = bytearray(size), 0
    for piece in pieces:
        start = _aligned(start)
        joined[start : start + len(piece)] = piece
        start += len(piece)
    return joined


def _memories(table: memoryview, rest: memoryview, start: int, rank: int) -> list[memoryview]:
    found = []
    for at in range(0, len(table), 8):
        size = int.from_bytes(table[at : at + 8], "little")
        start = _aligned(start)
        found.append(rest[start : start + size])
        start += size
    if start != len(rest):
        raise FrameError(f"rank {rank} sent {len(rest)} bytes for arrays of {start}")
    return [memoryview(bytearray(memory)) if memory.readonly else memory for memory in found]


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT

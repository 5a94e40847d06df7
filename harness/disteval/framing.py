"""Object to frame and back: the bytes that ranks exchange.

A frame begins with a block of `BLOCK_BYTES`: a fixed header (magic, version, kind, the number of
the collective, sizes, a checksum) and, where it fits there, all of the object. So a small object
needs one collective, of a length that all ranks know. What does not fit follows the block, and a
large array's memory follows as it is.

The body is a pickle of protocol 5 without the memory of its arrays, or, for arrays and where pickle
is not allowed, the `disteval.plain` form. Where the sender could not serialise its object it is the
reason; so every rank learns of it and none is left waiting in a collective that the sender never
entered.

Frames hold pickles unless `configure(allow_pickle=False)` was called: decode only what ranks of
your own world sent.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from disteval import plain, wire
from disteval.arguments import check_count
from disteval.errors import FrameError, RankError
from disteval.wire import BLOCK_BYTES, NO_CALL, Buffer, Call, Parts

MAX_OBJECT_BYTES = 4 << 30
"""The largest object that is sent, or allocated for; 4 GiB. `configure` sets it."""

ALLOW_PICKLE = True
"""Whether pickles are sent and read. `configure` sets it."""

_REASON_LENGTH = 2000


class Numbered(NamedTuple):
    """An object and the collective it is for; `encode` takes it and `decode` gives it back."""

    obj: Any
    call: Call


def configure(*, max_object_bytes: int | None = None, allow_pickle: bool | None = None) -> None:
    """Set what may travel, in this process; give every rank the same.

    Args:
        max_object_bytes: The cap, from 1 up; None leaves it. It is checked before an object is sent
            and before anything is allocated for one that is announced.
        allow_pickle: False confines objects to what `disteval.plain` can write, and refuses pickles
            that come; None leaves it.

    Raises:
        UsageError: The cap is no positive integer.
    """
    global MAX_OBJECT_BYTES, ALLOW_PICKLE
    if max_object_bytes is not None:
        MAX_OBJECT_BYTES = check_count("max_object_bytes", max_object_bytes)
    if allow_pickle is not None:
        ALLOW_PICKLE = bool(allow_pickle)


def encode(obj: Any) -> bytearray:
    """Serialise ``obj`` into one frame; never raises because of what ``obj`` is.

    Args:
        obj: Any object, or a `Numbered` one. One that can't be serialised, or is over
            `MAX_OBJECT_BYTES`, becomes a frame that raises `RankError` wherever it is decoded.

    Returns:
        The frame, block included; `BLOCK_BYTES` or more.
    """
    block, rest = _parts(obj)
    frame = bytearray(block)
    frame += rest
    return frame


def encode_array(obj: Any, multiple: int = 1) -> npt.NDArray[np.uint8]:
    """Serialise ``obj`` as `encode` does, into an array: of large frames, the faster of the two.

    Args:
        obj: See `encode`.
        multiple: The array is lengthened to a multiple of this; what is added may hold anything.
    """
    block, rest = _parts(obj)
    size = len(block) + len(rest)
    length = -(-size // multiple) * multiple
    # Libraries that take its memory as it is want it aligned.
    memory = np.empty(length + wire.ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % wire.ALIGNMENT
    frame = memory[start : start + length]
    frame[: len(block)] = np.frombuffer(block, dtype=np.uint8)
    frame[len(block) : size] = np.frombuffer(rest, dtype=np.uint8)
    return frame


def split(obj: Any, call: Call = NO_CALL) -> Parts:
    """Serialise ``obj`` as `encode` does, in two parts; a large array's memory is not copied."""
    try:
        kind, body, memories = _serialise(obj)
    except Exception as error:  # a __reduce__ may raise anything, and the others must be told
        reason = f"could not serialise its object of type {type(obj).__qualname__}: "
        return _error(reason + _describe(error), call)
    # Nearly all frames; `wire.assemble` would make the same of them, more slowly.
    if not memories and len(body) <= wire.INLINE_BYTES and len(body) <= MAX_OBJECT_BYTES:
        return Parts(wire.block(kind, 0, call, body, BLOCK_BYTES), b"")
    size = wire.laid_out_size(body, memories)
    if size > MAX_OBJECT_BYTES:
        reason = f"would send {size} bytes, over the cap of {MAX_OBJECT_BYTES} "
        return _error(reason + "(max_object_bytes of disteval.framing.configure)", call)
    return wire.assemble(kind, body, memories, call)


def size_of(block: Buffer, rank: int, call: Call | None = None) -> int:
    """Return the length of the frame that a block begins, before anything is allocated for it.

    Raises:
        FrameError: The bytes are no block, belong to another collective than ``call``, or announce
            more than `MAX_OBJECT_BYTES`.
    """
    size = wire.read_header(memoryview(block), rank, call).size
    check_size(size, rank)
    return size


def decode(frame: Buffer, rank: int, call: Call | None = None, rest: Buffer | None = None) -> Any:
    """Rebuild the object of a frame.

    Args:
        frame: The frame and nothing more; or, with ``rest``, its block. Large arrays become views
            of this memory where it is writable, so it is theirs from here on.
        rank: Who sent it, for messages.
        call: The collective it has to belong to; None takes any.
        rest: What follows the block.

    Returns:
        The object; a `Numbered` one where the frame has a number and ``call`` is None.

    Raises:
        IncompleteFrameError: More follows, and is not here.
        FrameError: The bytes are no frame, they belong to another collective, or the object can't
            be rebuilt here.
        RankError: The sender could not serialise its object.
    """
    view = memoryview(frame)
    header = wire.read_header(view, rank, call)
    more = view[BLOCK_BYTES:] if rest is None else memoryview(rest)
    body, memories = wire.take_apart(header, view, more, rank)
    if header.kind == wire.ERROR:
        raise RankError(rank, str(body, "utf-8", "replace"))
    try:
        obj = _rebuild(header.kind, body, memories)
    except Exception as error:
        raise _cannot_rebuild(rank, error) from error
    return Numbered(obj, header.call) if call is None and header.call.sequence else obj


def decode_blocks(blocks: bytearray, call: Call) -> list[Any]:
    """Rebuild the objects of the blocks that ranks 0, 1, … sent, one after another.

    Raises:
        IncompleteFrameError: A rank's frame goes on after its block.
        FrameError, RankError: See `decode`.
    """
    objects = []
    for rank, start in enumerate(range(0, len(blocks), BLOCK_BYTES)):
        body = wire.body_of_small_pickle(blocks, start, call) if ALLOW_PICKLE else None
        if body is None:
            block = memoryview(blocks)[start : start + BLOCK_BYTES]
            objects.append(decode(block, rank, call, b""))
            continue
        try:
            objects.append(pickle.loads(body))
        except Exception as error:
            raise _cannot_rebuild(rank, error) from error
    return objects


def check_size(size: int, rank: int) -> None:
    """Refuse a frame size over the cap, before anything is allocated for it.

    Raises:
        FrameError: ``size`` is over `MAX_OBJECT_BYTES`.
    """
    if size > MAX_OBJECT_BYTES + BLOCK_BYTES:
        raise FrameError(
            f"rank {rank} announced {size} bytes, over the cap of {MAX_OBJECT_BYTES} "
            f"(max_object_bytes of disteval.framing.configure)"
        )


def _parts(obj: Any) -> Parts:
    return split(*obj) if type(obj) is Numbered else split(obj)


def _serialise(obj: Any) -> tuple[int, bytes, list[memoryview]]:
    if not ALLOW_PICKLE or plain.is_plain_array(obj):
        return (wire.PLAIN, *plain.dumps(obj))
    memories: list[memoryview] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if len(memory) < plain.OUT_OF_BAND_BYTES or len(memories) == wire.MAX_MEMORIES:
            return True
        memories.append(memory)
        return False

    return wire.PICKLE, pickle.dumps(obj, 5, buffer_callback=keep_inside), memories


def _rebuild(kind: int, body: memoryview, memories: Sequence[memoryview]) -> Any:
    if kind == wire.PLAIN:
        return plain.loads(body, memories)
    if not ALLOW_PICKLE:
        raise plain.PlainError("it is a pickle, and allow_pickle is off here")
    return pickle.loads(body, buffers=memories)


def _cannot_rebuild(rank: int, error: Exception) -> FrameError:
    return FrameError(f"the object of rank {rank} can't be rebuilt here: {_describe(error)}")


def _error(reason: str, call: Call) -> Parts:
    body = reason[:_REASON_LENGTH].encode(errors="replace")
    return wire.assemble(wire.ERROR, body, [], call)


def _describe(error: BaseException) -> str:
    # Not str(error): an exception's own __str__ may raise.
    return "".join(traceback.format_exception_only(error)).strip()

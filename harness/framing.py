"""Object to frame and back: the bytes that ranks exchange.

A frame is a fixed header (magic, version, kind, payload size) and a payload. The payload is a
pickle, or, where the sender could not serialise its object, the reason; so every rank learns of it
and none is left waiting in a collective that the sender never entered.

Frames hold pickles: decode only what ranks of your own world sent.
"""

from __future__ import annotations

import pickle
import struct
import traceback
from typing import Any

from harness.errors import FrameError, RankError

MAX_OBJECT_BYTES = 4 << 30
"""The largest frame that is sent, or allocated for; 4 GiB."""

_HEADER = struct.Struct("<4sBBxxQ")  # magic, version, kind, payload bytes
_MAGIC = b"DEHF"
_VERSION = 1
_OBJECT, _ERROR = 0, 1


def encode(obj: Any) -> bytearray:
    """Serialise ``obj`` into a frame; never raises because of what ``obj`` is.

    Args:
        obj: Any object. One that can't be pickled, or whose pickle is over `MAX_OBJECT_BYTES`,
            becomes a frame that raises `RankError` wherever it is decoded.

    Returns:
        The frame, header included.
    """
    try:
        payload = pickle.dumps(obj, protocol=5)
    except Exception as error:  # a __reduce__ may raise anything, and the others must be told
        return _frame(_ERROR, f"could not serialise its {_name(obj)}: {_describe(error)}".encode())
    if len(payload) > MAX_OBJECT_BYTES:
        reason = f"would send {len(payload)} bytes, over the cap of {MAX_OBJECT_BYTES}"
        return _frame(_ERROR, f"{reason} (harness.framing.MAX_OBJECT_BYTES)".encode())
    return _frame(_OBJECT, payload)


def decode(frame: bytes | bytearray | memoryview, rank: int) -> Any:
    """Rebuild the object of a frame.

    Args:
        frame: The header and the payload, and nothing more.
        rank: Who sent it, for messages.

    Raises:
        FrameError: The bytes are no frame, or the object's own unpickling raised.
        RankError: The sender could not serialise its object.
    """
    view = memoryview(frame)
    if len(view) < _HEADER.size:
        raise FrameError(
            f"rank {rank} sent {len(view)} bytes, less than a header of {_HEADER.size}"
        )
    magic, version, kind, size = _HEADER.unpack_from(view)
    if magic != _MAGIC or version != _VERSION or kind not in (_OBJECT, _ERROR):
        raise FrameError(
            f"rank {rank} sent bytes that are no frame of version {_VERSION}: "
            f"they begin with {bytes(view[: _HEADER.size]).hex(' ')}"
        )
    payload = view[_HEADER.size :]
    if len(payload) != size:
        raise FrameError(
            f"rank {rank} announced a payload of {size} bytes, but {len(payload)} came"
        )
    if kind == _ERROR:
        raise RankError(rank, bytes(payload).decode(errors="replace"))
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise FrameError(
            f"the object of rank {rank} can't be rebuilt here: {_describe(error)}"
        ) from error


def check_size(size: int, rank: int) -> None:
    """Refuse a frame size over the cap, before anything is allocated for it.

    Raises:
        FrameError: ``size`` is over `MAX_OBJECT_BYTES`.
    """
    if size > MAX_OBJECT_BYTES + _HEADER.size:
        raise FrameError(
            f"rank {rank} announced {size} bytes, over the cap of {MAX_OBJECT_BYTES} "
            f"(harness.framing.MAX_OBJECT_BYTES)"
        )


def _frame(kind: int, payload: bytes) -> bytearray:
    frame = bytearray(_HEADER.size + len(payload))
    _HEADER.pack_into(frame, 0, _MAGIC, _VERSION, kind, len(payload))
    frame[_HEADER.size :] = payload
    return frame


def _name(obj: Any) -> str:
    return f"object of type {type(obj).__qualname__}"


def _describe(error: BaseException) -> str:
    # Not str(error): an exception's own __str__ may raise.
    return "".join(traceback.format_exception_only(error)).strip()

"""The objects that every backend must be able to send."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

SIZES = (0, 1, 255, 256, 257, 4_096, 65_535, 65_536, 65_537, 1 << 20)
"""Payload sizes in bytes at which length fields and buffers often fail."""


class Sample:
    """A class of a user's own, which pickles by its attributes."""

    def __init__(self, index: int, scores: Any) -> None:
        self.index = index
        self.scores = scores

    def __repr__(self) -> str:
        return f"Sample({self.index}, {self.scores!r})"


def large(world_size: int) -> int:
    """Return the size of one large payload: over 32 MiB everywhere, and 64 MiB on 2 and 3 ranks.

    If four ranks or more pad their payloads to it, these have more than 2**31 bits.
    """
    if world_size < 4:
        return (33, 64, 64)[world_size - 1] << 20
    return max(33 << 20, (1 << 28) // world_size + 1)


def large_of_each(world_size: int, fills_buffers: bool) -> int:
    """Return the size of the payloads that all ranks send at once, the smaller the more ranks.

    Linux buffers up to 36 MiB of a connection, see ``tcp_rmem`` and ``tcp_wmem``. Ranks that send
    more than that before they receive wait for ever, which one world size of a check has to show.
    """
    most, together = (40, 128) if fills_buffers else (8, 24)
    return min(most << 20, (together << 20) // world_size)


ARRAYS: tuple[Any, ...] = (
    np.array(3.5),
    np.zeros((0, 3), dtype=np.float32),
    np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    np.arange(12)[::-2],
    np.arange(4, dtype=">i4"),
    np.array([True, False]),
    np.array([1 + 2j, -0.0], dtype=np.complex64),
    np.array([(1, 2.5)], dtype=[("index", "<i4"), ("score", ">f8")]),
    np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    np.array(["a", "bcd"]),
    np.array([0x7FF8_0000_DEAD_BEEF, 0xFFF0_0000_0000_0001], dtype="<u8").view("<f8"),  # NaN
    np.float16(0.1),
)

_shared = [1, 2]
_loop: list[Any] = [0]
_loop.append(_loop)

SPECIAL: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 200, 0.0, -0.0, float("inf"), float("nan"), 1j, "", "\0", "é\ud800",
    b"", b"\0", b"x\0\0\0", bytearray(b"\0"), (), [], {}, set(), frozenset({1}), [[]], {"": None},
    (1, (2, [3, {4: b"5"}])), [_shared, _shared], _loop, Sample(7, [0.5]), range(3), ...,
    datetime.datetime(2020, 2, 29, 1, 2, 3, 4, datetime.timezone.utc), datetime.timedelta(3),
    ModuleNotFoundError("no module", "x"),
)  # fmt: skip


def as_sent(obj: Any) -> Any:
    """Return the object that a rank gets from the leader, in which a view has become a copy."""
    if isinstance(obj, np.ndarray) and not (obj.flags.c_contiguous or obj.flags.f_contiguous):
        return np.ascontiguousarray(obj)
    return obj


KINDS = [as_sent(obj) for obj in (*SPECIAL, *ARRAYS)]
"""All of them, as ranks get them: the leader sends each rank its object first."""

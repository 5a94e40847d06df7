"""The objects that every backend must be able to send."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import fractions
import pathlib
import uuid
from decimal import Decimal
from typing import Any, NamedTuple

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


class Color(enum.Enum):
    """An enumeration of a user's own."""

    RED = 1


class Flags(enum.IntFlag):
    """Numbers of a user's own, which have names."""

    READ = 4


class Point(NamedTuple):
    """A tuple of a user's own."""

    x: float
    y: float


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A data class of a user's own."""

    name: str


class Text(str):
    """A text of a user's own, with an attribute."""

    language = ""


class Scores(dict[str, Any]):
    """A dict of a user's own."""


class Units(np.ndarray[Any, Any]):
    """An array of a user's own."""


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
    np.arange(3, dtype=np.uint8).view(Units),
    np.ma.masked_array([1.5, 2.5], [True, False]),
    np.array([1, None, "a"], dtype=object),
    np.array([b"a\0b", b""], dtype="S4"),
    np.array(["2020-01-01T00:00:00.000000001"], dtype="datetime64[ns]"),
    np.array([90, 1], dtype="timedelta64[m]"),
    np.array([5e-324, 1e-310]),  # subnormal
    np.array([1 << 63], dtype=np.uint64),
)

_shared = [1, 2]
_loop: list[Any] = [0]
_loop.append(_loop)

_german = Text("ja")
_german.language = "de"


def _nested(depth: int) -> Any:
    return [_nested(depth - 1)] if depth else "innermost"


def _failed() -> BaseException:
    error = ValueError("told", 2)  # pickle leaves out what it was raised from
    error.__dict__.update(where="here", __notes__=["a note"])
    return error


SPECIAL: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 200, 0.0, -0.0, float("inf"), float("nan"), 1j, "", "\0", "é\ud800",
    b"", b"\0", b"x\0\0\0", bytearray(b"\0"), (), [], {}, set(), frozenset({1}), [[]], {"": None},
    (1, (2, [3, {4: b"5"}])), [_shared, _shared], _loop, Sample(7, [0.5]), range(3), ...,
    datetime.datetime(2020, 2, 29, 1, 2, 3, 4, datetime.timezone.utc), datetime.timedelta(3),
    ModuleNotFoundError("no module", "x"), _failed(),
    Color.RED, Flags.READ, Point(0.5, -0.0), Frozen("a"), _german, Scores(a=1),
    collections.OrderedDict([("b", 1), ("a", 2)]), collections.defaultdict(list, a=[1]),
    collections.Counter("aab"), collections.deque([1, 2], maxlen=2),
    Decimal("1.500"), Decimal("-0"), fractions.Fraction(1, 3), uuid.UUID(int=7),
    pathlib.PurePosixPath("a/b"), slice(1, None, -1), len, Sample,
    datetime.date(1, 1, 1), datetime.time(1, 2, fold=1),
    datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(minutes=-90))),
    "e\u0301 \u00e9", "\r\n\u2028", {2: "a", "2": "b", (2,): "c", None: "d", True: "e"},
    {"b": 1, "a": 2},
)  # fmt: skip

LONG: tuple[Any, ...] = (
    _nested(200), [*range(255)], (0,) * 256, {*range(257)}, dict.fromkeys(range(1_000)),
)  # fmt: skip
"""Objects with many parts; ten times as many parts cost ten times the time of a check."""


def as_sent(obj: Any) -> Any:
    """Return the object that a rank gets from the leader, in which a view has become a copy."""
    if isinstance(obj, np.ndarray) and not (obj.flags.c_contiguous or obj.flags.f_contiguous):
        return np.ascontiguousarray(obj)
    return obj


KINDS = [as_sent(obj) for obj in (*SPECIAL, *ARRAYS, *LONG)]
"""All of them, as ranks get them: the leader sends each rank its object first."""

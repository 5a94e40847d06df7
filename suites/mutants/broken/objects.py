"""Backends that change some objects which they send."""

from __future__ import annotations

import copy
import enum
import json
import pickle
import unicodedata
from collections import deque
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np

from suites.mutants.broken.base import Gathered, Mutant, add


class Changed(Mutant):
    """A backend that changes every object that it sends, or every one of a type."""

    kind: ClassVar[type | None] = None

    def all_gather_object(self, obj: Any) -> Any:
        return [self.change_some(item) for item in super().all_gather_object(obj)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self.change_some(super().broadcast_object(obj, src))

    def change_some(self, item: Any) -> Any:
        return self.change(item) if self.kind in (None, type(item)) else item


class ChangedBytes(Changed):
    kind = bytes


class ChangedArray(Changed):
    kind = np.ndarray


add(
    globals(), Changed, "2.2",
    NoneBecomesEmpty=lambda self, item: "" if item is None else item,
    NegativeZeroLost=lambda self, item: item + 0.0 if type(item) is float else item,
    SurrogatesLost=lambda self, item: (
        item.encode("utf-8", "replace").decode() if type(item) is str else item
    ),
    LargeIntegersWrap=lambda self, item: (
        item & 0xFFFF_FFFF_FFFF_FFFF if type(item) is int and item > 0 else item
    ),
)  # fmt: skip
add(
    globals(), Changed, "2.2", "JSON",
    TrueBecomes1=lambda self, item: int(item) if type(item) is bool else item,
    TupleBecomesList=lambda self, item: list(item) if type(item) is tuple else item,
    BytearrayBecomesBytes=lambda self, item: bytes(item) if type(item) is bytearray else item,
    ClassLost=lambda self, item: vars(item) if type(item).__name__ == "Sample" else item,
    TimezoneLost=lambda self, item: item.replace(tzinfo=None) if hasattr(item, "tzinfo") else item,
)  # fmt: skip
add(
    globals(), Changed, "2.2",
    EnumBecomesItsValue=lambda self, item: item.value if isinstance(item, enum.Enum) else item,
    ClassOfDictLost=lambda self, item: dict(item) if isinstance(item, dict) else item,
    NamesOfTupleLost=lambda self, item: tuple(item) if isinstance(item, tuple) else item,
    AttributesOfTextLost=lambda self, item: (
        type(item)(str(item)) if isinstance(item, str) else item
    ),
    KeysSorted=lambda self, item: (
        dict(sorted(item.items())) if type(item) is dict and {*map(type, item)} == {str} else item
    ),
    ManyKeysLost=lambda self, item: (
        dict([*item.items()][:999]) if type(item) is dict else item
    ),
    DigitsLost=lambda self, item: item.normalize() if isinstance(item, Decimal) else item,
    TextNormalised=lambda self, item: (
        unicodedata.normalize("NFC", item) if type(item) is str else item
    ),
    NotesLost=lambda self, item: (
        type(item)(*item.args) if isinstance(item, ValueError) else item
    ),
    BoundOfQueueLost=lambda self, item: deque(item) if isinstance(item, deque) else item,
    ClassOfArrayLost=lambda self, item: np.asarray(item) if isinstance(item, np.ndarray) else item,
)  # fmt: skip
add(
    globals(), ChangedArray, "2.2",
    SubnormalsLost=lambda self, item: (
        np.where(np.abs(item) < 1e-300, 0.0, item) if item.dtype == "<f8" and item.ndim else item
    ),
    UnitOfTimeLost=lambda self, item: item.astype("M8[ms]") if item.dtype.kind == "M" else item,
    ObjectsBecomeText=lambda self, item: item.astype("U") if item.dtype.hasobject else item,
)  # fmt: skip
add(globals(), ChangedBytes, "2.3", "65535", CutAt64K=lambda self, item: item[:65_535])
add(
    globals(), ChangedBytes, "2.3", "16 bits",
    SixteenBitSizes=lambda self, item: item[: len(item) % 65_536],
)  # fmt: skip
add(
    globals(), ChangedBytes, "2.2", "stripping",
    TrailingZerosStripped=lambda self, item: item.rstrip(b"\0"),
)  # fmt: skip
add(globals(), ChangedBytes, "2.4", "33554432", LargeOnesLost=lambda self, item: item[: 32 << 20])
add(globals(), ChangedBytes, "3.2", "65535", BroadcastCutAt64K=lambda self, item: item[:65_535])


add(
    globals(), Changed, "2.2", "protocol=5",
    FoldLost=lambda self, item: item.replace(fold=0) if hasattr(item, "fold") else item,
)  # fmt: skip


class BitOffsetsInInt32ForFive(Gathered):
    """Counts the offset of a rank's part in bits, in an int32 that suffices for four large ones."""

    breaks = "2.4"

    def change(self, gathered: list[Any]) -> Any:
        sizes = [len(item) if type(item) is bytes else 1 for item in gathered]
        bits = max(sizes) * len(gathered) * 8  # padded to the largest, as tensors are
        return gathered if bits < 1 << 31 else [*gathered[:-1], b""]


class LargeGathered(Gathered):
    """A backend that changes what all ranks send at once, if it is large."""

    def change(self, gathered: list[Any]) -> Any:
        large = all(type(item) is bytes and len(item) > 4 << 20 for item in gathered)
        return self.change_large(gathered) if large and len(gathered) > 1 else gathered

    def change_large(self, gathered: list[Any]) -> Any:
        raise NotImplementedError


class OneReceiveForEach(LargeGathered):
    """Receives as much of each object as is there, which is all of it while one rank sends."""

    breaks = "2.4"
    cause = "until all bytes"

    def change_large(self, gathered: list[Any]) -> Any:
        return [item[: (4 << 20) + 1000 * rank] for rank, item in enumerate(gathered)]


class PiecesInTheOrderOfArrival(LargeGathered):
    """Gives pieces of 64 KB to the ranks in turn, which is not the order in which they arrive."""

    breaks = "2.4"

    def change_large(self, gathered: list[Any]) -> Any:
        first, second, *others = gathered
        early, late = 3_000_000, 3_064_000
        mixed = [
            a[:early] + b[early:late] + a[late:] for a, b in ((first, second), (second, first))
        ]
        return [*mixed, *others]


class LastByteOfPagesLost(Mutant):
    """Loses the last byte where the length on the wire is a multiple of 64 KiB."""

    breaks = "2.3"

    def _all_gather_bytes(self, mine: Any, sizes: Any) -> Any:
        found = super()._all_gather_bytes(mine, sizes)
        return [data[:-1] + b"\0" if data and len(data) % 65_536 == 0 else data for data in found]


class SharingLost(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        if type(item) is list and len(item) == 2 and item[0] is item[1]:
            return [copy.deepcopy(item[0]), item[1]]
        return item


class PickleProtocol2(Mutant):
    """Pickles by protocol 2, so that new exceptions lose their class."""

    breaks = "2.2"
    cause = "protocol=5"

    def all_gather_object(self, obj: Any) -> Any:
        old = super().all_gather_object(pickle.dumps(obj, protocol=2))
        return [pickle.loads(item) for item in old]


class OverJson(Mutant):
    breaks = "2.2"

    def all_gather_object(self, obj: Any) -> Any:
        return [json.loads(text) for text in super().all_gather_object(json.dumps(obj))]


add(
    globals(), ChangedArray, "2.2", "byte order",
    ByteOrderLost=lambda self, item: item.astype(item.dtype.newbyteorder("=")),
)  # fmt: skip
add(
    globals(), ChangedArray, "2.2",
    DtypeLost=lambda self, item: item.astype(np.int64) if item.dtype == np.int16 else item,
    FortranOrderLost=lambda self, item: item.copy(order="C"),
    NanPayloadLost=lambda self, item: (
        np.where(np.isnan(item), np.nan, item) if item.dtype == "<f8" else item
    ),
    ZeroSizeLost=lambda self, item: item if item.size else np.zeros(0, item.dtype),
    ScalarFor0d=lambda self, item: item if item.ndim else item[()],
    FieldsLost=lambda self, item: item.tolist() if item.dtype.names else item,
    ComplexPartLost=lambda self, item: item.real.copy() if item.dtype.kind == "c" else item,
)  # fmt: skip

"""Backends that change some objects which they send."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np

from suites.mutants.broken.base import Gathered, Mutant


class Changed(Mutant):
    """A backend that changes every object that it sends."""

    def all_gather_object(self, obj: Any) -> Any:
        return [self.change(item) for item in super().all_gather_object(obj)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self.change(super().broadcast_object(obj, src))

    def change(self, item: Any) -> Any:
        raise NotImplementedError


class CutAt64K(Changed):
    breaks = "2.3"

    def change(self, item: Any) -> Any:
        return item[:65_535] if type(item) is bytes else item


class BroadcastCutAt64K(CutAt64K):
    breaks = "3.2"


class BitOffsetsInInt32ForFive(Gathered):
    """Counts the offset of a rank's part in bits, in an int32 that suffices for four large ones."""

    breaks = "2.4"

    def change(self, gathered: list[Any]) -> Any:
        sizes = [len(item) if type(item) is bytes else 1 for item in gathered]
        bits = max(sizes) * len(gathered) * 8  # padded to the largest, as tensors are
        return gathered if bits < 1 << 31 else [*gathered[:-1], b""]


class SixteenBitSizes(Changed):
    breaks = "2.3"

    def change(self, item: Any) -> Any:
        return item[: len(item) % 65_536] if type(item) is bytes else item


class LargeOnesLost(Changed):
    breaks = "2.4"

    def change(self, item: Any) -> Any:
        return None if type(item) is bytes and len(item) > 32 << 20 else item


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


class TrailingZerosStripped(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return item.rstrip(b"\0") if type(item) is bytes else item


class NoneBecomesEmpty(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return "" if item is None else item


class TrueBecomes1(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return int(item) if type(item) is bool else item


class NegativeZeroLost(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return item + 0.0 if type(item) is float else item


class TupleBecomesList(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return list(item) if type(item) is tuple else item


class BytearrayBecomesBytes(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return bytes(item) if type(item) is bytearray else item


class SurrogatesLost(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return item.encode("utf-8", "replace").decode() if type(item) is str else item


class LargeIntegersWrap(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return item & 0xFFFF_FFFF_FFFF_FFFF if type(item) is int and item > 0 else item


class SharingLost(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        if type(item) is list and len(item) == 2 and item[0] is item[1]:
            return [copy.deepcopy(item[0]), item[1]]
        return item


class ClassLost(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return vars(item) if type(item).__name__ == "Sample" else item


class TimezoneLost(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return item.replace(tzinfo=None) if hasattr(item, "tzinfo") else item


class PickleProtocol2(Mutant):
    """Pickles by protocol 2, so that new exceptions lose their class."""

    breaks = "2.2"

    def all_gather_object(self, obj: Any) -> Any:
        old = super().all_gather_object(pickle.dumps(obj, protocol=2))
        return [pickle.loads(item) for item in old]


class OverJson(Mutant):
    breaks = "2.2"

    def all_gather_object(self, obj: Any) -> Any:
        return [json.loads(text) for text in super().all_gather_object(json.dumps(obj))]


class ChangedArray(Changed):
    """A backend that changes every array that it sends."""

    def change(self, item: Any) -> Any:
        return self.change_array(item) if isinstance(item, np.ndarray) else item

    def change_array(self, array: Any) -> Any:
        raise NotImplementedError


class DtypeLost(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return array.astype(np.int64) if array.dtype == np.int16 else array


class FortranOrderLost(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return array.copy(order="C")


class ByteOrderLost(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return array.astype(array.dtype.newbyteorder("="))


class NanPayloadLost(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return np.where(np.isnan(array), np.nan, array) if array.dtype == "<f8" else array


class ZeroSizeLost(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return array if array.size else np.zeros(0, array.dtype)


class ScalarFor0d(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return array if array.ndim else array[()]


class FieldsLost(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return array.tolist() if array.dtype.names else array


class ComplexPartLost(ChangedArray):
    breaks = "2.2"

    def change_array(self, array: Any) -> Any:
        return array.real.copy() if array.dtype.kind == "c" else array

"""Deliberately broken backends, each a few lines over a correct one, and the rule it breaks."""

from __future__ import annotations

import copy
import os
import threading
import time
from typing import Any, ClassVar

import numpy as np

from backends.threads_dist import ThreadsDist
from harness import FrameError, RankError, framing
from harness.conformance.on_ranks import Sample

MUTANTS: list[type[Mutant]] = []
_ABOVE_64K = 65_535


class Mutant(ThreadsDist):
    """A correct backend, until a subclass breaks it."""

    breaks: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "breaks" in cls.__dict__:
            MUTANTS.append(cls)


# ------------------------------------------------------------------- who is who


class NeverInitialized(Mutant):
    breaks = "1.1"
    is_initialized = property(lambda self: False)


class RankLiesLater(Mutant):
    breaks = "1.2"
    called = False

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        self.called = True
        return gathered

    @property
    def rank(self) -> int:
        return 0 if self.called else super().rank


class WorldSizeLiesLater(Mutant):
    breaks = "1.2"
    called = 0

    def all_gather_object(self, obj: Any) -> Any:
        self.called += 1
        return super().all_gather_object(obj)

    @property
    def world_size(self) -> int:
        return super().world_size + (self.called > 10)


# ---------------------------------------------------------------- what is gathered


class Gathered(Mutant):
    """Changes the list that an all-gather returns."""

    def all_gather_object(self, obj: Any) -> Any:
        return self.change(super().all_gather_object(obj))

    def change(self, gathered: list[Any]) -> Any:
        raise NotImplementedError


class ReversedOrder(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return gathered[::-1]


class LastRankDropped(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return gathered[:-1]


class OwnObjectTwice(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        gathered[(self.rank + 1) % len(gathered)] = copy.deepcopy(gathered[self.rank])
        return gathered


class RotatedByRank(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return gathered[self.rank :] + gathered[: self.rank]


class OnlyRank0Gathers(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return gathered if self.rank == 0 else [None] * len(gathered)


class ReturnsTuple(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return tuple(gathered)


class OneTooMany(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return [*gathered, None]


class WrongOnlyForFive(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return gathered[::-1] if len(gathered) == 5 else gathered


class WrongOnlyOnLastRank(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return gathered[::-1] if self.rank == len(gathered) - 1 else gathered


class NestedInAList(Gathered):
    breaks = "2.1"

    def change(self, gathered: list[Any]) -> Any:
        return [[item] for item in gathered]


class PaddedToTheLargest(Gathered):
    breaks = "2.3"

    def change(self, gathered: list[Any]) -> Any:
        longest = max((len(item) for item in gathered if type(item) is bytes), default=0)
        return [item.ljust(longest, b"\0") if type(item) is bytes else item for item in gathered]


class SizesOfRank0(Gathered):
    breaks = "2.3"

    def change(self, gathered: list[Any]) -> Any:
        if type(gathered[0]) is not bytes:
            return gathered
        length = len(gathered[0])
        return [item[:length] if type(item) is bytes else item for item in gathered]


class LosesTheLastOfLongLists(Gathered):
    breaks = "8.1"

    def change(self, gathered: list[Any]) -> Any:
        size, entries = gathered[-1] if type(gathered[-1]) is tuple else (None, None)
        if type(entries) is list and len(entries) > 3:
            gathered[-1] = (size, entries[:-1])
        return gathered


# ------------------------------------------------------------ what becomes of objects


class Changed(Mutant):
    """Changes every object on its way."""

    def all_gather_object(self, obj: Any) -> Any:
        return [self.change(item) for item in super().all_gather_object(obj)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self.change(super().broadcast_object(obj, src))

    def change(self, item: Any) -> Any:
        raise NotImplementedError


class CutAt64K(Changed):
    breaks = "2.3"

    def change(self, item: Any) -> Any:
        return item[:_ABOVE_64K] if type(item) is bytes else item


class BroadcastCutAt64K(CutAt64K):
    breaks = "3.2"


class SixteenBitSizes(Changed):
    breaks = "2.3"

    def change(self, item: Any) -> Any:
        return item[: len(item) % 65_536] if type(item) is bytes else item


class LargeOnesLost(Changed):
    breaks = "2.4"

    def change(self, item: Any) -> Any:
        return None if type(item) is bytes and len(item) > 32 << 20 else item


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
        return vars(item) if isinstance(item, Sample) else item


class TimezoneLost(Changed):
    breaks = "2.2"

    def change(self, item: Any) -> Any:
        return item.replace(tzinfo=None) if hasattr(item, "tzinfo") else item


class ChangedArray(Changed):
    """Changes every array on its way."""

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


# -------------------------------------------------------------------- broadcasts


class SrcIgnored(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return super().broadcast_object(obj, 0)


class SrcOffByOne(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return super().broadcast_object(obj, (src + 1) % self.world_size)


class BroadcastReturnsOwn(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        super().broadcast_object(obj, src)
        return copy.deepcopy(obj)


class LastRankGetsNothing(Mutant):
    breaks = "3.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        sent = super().broadcast_object(obj, src)
        return sent if self.rank < self.world_size - 1 or self.rank == src else None


class OthersMustBeAbleToSend(Mutant):
    breaks = "3.3"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return super().all_gather_object(obj)[src]


class NegativeSrcCountsBack(Mutant):
    breaks = "3.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return super().broadcast_object(obj, src % self.world_size if src < 0 else src)


class SrcIsClamped(Mutant):
    breaks = "3.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return super().broadcast_object(obj, min(src, self.world_size - 1) if src > 0 else src)


class OnlyRank0RefusesSrc(Mutant):
    breaks = "3.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        if self.rank and not 0 <= src < self.world_size:
            return None
        return super().broadcast_object(obj, src)


# ------------------------------------------------------------------ independence


class OwnEntryIsTheInput(Mutant):
    breaks = "4.1"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        gathered[self.rank] = obj
        return gathered


class BroadcastReturnsTheInput(Mutant):
    breaks = "4.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        sent = super().broadcast_object(obj, src)
        return obj if self.rank == src else sent


class EqualResultsAreOne(Mutant):
    breaks = "4.1"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cache: dict[bytes, Any] = {}

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        return [self.cache.setdefault(bytes(framing.encode(item)), item) for item in gathered]


class InputIsMarked(Mutant):
    breaks = "4.1"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        if type(obj) is dict:
            obj["seen"] = True
        return gathered


# -------------------------------------------------------------------- sequences


class StaleBuffer(Mutant):
    breaks = "5.1"
    previous: Any = None

    def all_gather_object(self, obj: Any) -> Any:
        gathered, previous = super().all_gather_object(obj), self.previous
        self.previous = gathered
        return gathered if previous is None else previous


class BroadcastAfterGatherIsStale(Mutant):
    breaks = "5.1"
    gathered: Any = None

    def all_gather_object(self, obj: Any) -> Any:
        self.gathered = super().all_gather_object(obj)
        return list(self.gathered)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        sent, stale = super().broadcast_object(obj, src), self.gathered
        self.gathered = None
        return sent if stale is None else stale[src]


class WrongOnThe17thCall(Gathered):
    breaks = "5.1"
    calls = 0

    def change(self, gathered: list[Any]) -> Any:
        self.calls += 1
        return gathered[:-1] if self.calls == 17 else gathered


class WrongWhenSomebodyIsLate(Mutant):
    breaks = "5.2"

    def all_gather_object(self, obj: Any) -> Any:
        begin = time.monotonic()
        gathered = super().all_gather_object(obj)
        return gathered[::-1] if time.monotonic() - begin > 0.01 else gathered


class LeaksDescriptors(Mutant):
    breaks = "5.3"

    def all_gather_object(self, obj: Any) -> Any:
        os.open(os.devnull, os.O_RDONLY)
        return super().all_gather_object(obj)


class LeaksThreads(Mutant):
    breaks = "5.3"

    def all_gather_object(self, obj: Any) -> Any:
        if threading.active_count() < 2_000:
            threading.Thread(target=threading.Event().wait, args=(20,), daemon=True).start()
        return super().all_gather_object(obj)


class LeaksMemory(Mutant):
    breaks = "5.3"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: list[Any] = []

    def all_gather_object(self, obj: Any) -> Any:
        self.kept.append(b"x" * 200_000)
        return super().all_gather_object(obj)


# ----------------------------------------------------------------------- errors


class SwallowsTheError(Mutant):
    breaks = "6.1"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except RankError:
            return [None] * self.world_size


class OnlyTheGuiltyIsTold(Mutant):
    breaks = "6.1"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except RankError as error:
            if error.rank == self.rank:
                raise
            return [None] * self.world_size


class HangsWhenOneCannotSend(Mutant):
    breaks = "6.1"

    def all_gather_object(self, obj: Any) -> Any:
        # As a library does that serialises before it tells anybody.
        framing.decode(framing.encode(obj), self.rank)
        return super().all_gather_object(obj)


class UselessAfterAnError(Mutant):
    breaks = "6.1"
    failed = False

    def all_gather_object(self, obj: Any) -> Any:
        try:
            gathered = super().all_gather_object(obj)
        except RankError:
            self.failed = True
            raise
        return [] if self.failed else gathered


class UnloadableBecomesNone(Mutant):
    breaks = "6.2"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except FrameError:
            return [None] * self.world_size


class DeadlocksOnEmpty(Mutant):
    breaks = "2.3"

    def all_gather_object(self, obj: Any) -> Any:
        if obj == b"" and type(obj) is bytes:
            threading.Event().wait(30)
        return super().all_gather_object(obj)

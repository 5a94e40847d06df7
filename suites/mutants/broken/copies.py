"""Backends whose results are not copies, or belong to several ranks."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
from disteval import frames

from suites.mutants.broken.base import Gathered, Mutant
from suites.mutants.broken.objects import ChangedArray

_LARGE_BYTES = 65_536


class OwnEntryIsTheInput(Mutant):
    breaks = "4.1"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        gathered[self.rank] = obj
        return gathered


class OwnTupleIsTheInput(Mutant):
    """Takes a tuple for what can't be changed."""

    breaks = "4.1"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        if type(obj) is tuple:
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
        return [self.cache.setdefault(bytes(frames.encode(item)), item) for item in gathered]


class EqualEntriesAreOne(Gathered):
    """Decodes each frame once, even if several ranks have sent the same frame."""

    breaks = "4.1"

    def change(self, gathered: list[Any]) -> Any:
        decoded: dict[bytes, Any] = {}
        return [decoded.setdefault(bytes(frames.encode(item)), item) for item in gathered]


class ThreadsShareTheirResults(Mutant):
    """Lets rank 0 decode, and gives the same objects to the other threads in separate lists."""

    breaks = "4.1"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        member: Any = self._member
        if member is None:
            return gathered
        group = member.group
        if member.rank == 0:
            group.shared = gathered
        group.barrier.wait()
        shared = list(group.shared)
        group.barrier.wait()
        return shared


class LargeArraysShareABuffer(ChangedArray):
    """Returns a large array in a buffer that the next large array overwrites."""

    breaks = "4.1"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[Any, Any], Any] = {}

    def change(self, array: Any) -> Any:
        if array.nbytes < _LARGE_BYTES:
            return array
        buffer = self.buffers.setdefault((array.dtype, array.shape), np.empty_like(array))
        buffer[:] = array
        return buffer


class LargeResultsHaveThreeBuffers(Gathered):
    """Gathers large arrays into one of three buffers, in turn."""

    breaks = "4.1"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls, self.buffers = 0, dict[Any, Any]()

    def change(self, gathered: list[Any]) -> Any:
        if not all(isinstance(item, np.ndarray) and item.nbytes > 1 << 20 for item in gathered):
            return gathered
        self.calls += 1
        for rank, array in enumerate(gathered):
            buffer = self.buffers.setdefault((self.calls % 3, rank), np.empty_like(array))
            buffer[:] = array
            gathered[rank] = buffer
        return gathered


class InputIsMarked(Mutant):
    breaks = "4.1"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        if type(obj) is dict:
            obj["seen"] = True
        return gathered


class InputListIsUsedUp(Mutant):
    """Takes a list apart while it sends it."""

    breaks = "2.2"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        if type(obj) is list:
            obj.clear()
        return gathered


class CachesByIdentity(Mutant):
    """Sends an old copy of an object that it has sent before, as a cache of frames does."""

    breaks = "4.2"
    cause = "cache"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: dict[int, tuple[Any, bytes]] = {}

    def all_gather_object(self, obj: Any) -> Any:
        _, frame = self.sent.setdefault(id(obj), (obj, bytes(frames.encode(obj))))
        return super().all_gather_object(frames.decode(frame, 0))


class SendsWhenOthersArrive(Mutant):
    """Lets the source leave a reference, which the other ranks pickle when they arrive."""

    breaks = "4.2"
    cause = "after the call"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        member = self._member
        if member is None:
            return super().broadcast_object(obj, src)
        group, rank = member.group, member.rank
        queues = group.__dict__.setdefault("queues", {})
        if rank == src:
            for other in range(self.world_size):
                if other != rank:
                    queues.setdefault((src, other), queue.SimpleQueue()).put(obj)
        else:
            obj = queues.setdefault((src, rank), queue.SimpleQueue()).get(timeout=20)
        return frames.decode(frames.encode(obj), 0)

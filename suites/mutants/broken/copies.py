"""Backends whose results are not copies that belong to one rank."""

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
    """Each frame is decoded once, also where several ranks have sent the same one."""

    breaks = "4.1"

    def change(self, gathered: list[Any]) -> Any:
        decoded: dict[bytes, Any] = {}
        return [decoded.setdefault(bytes(frames.encode(item)), item) for item in gathered]


class ThreadsShareTheirResults(Mutant):
    """Rank 0 decodes, and the other threads take the same objects, in lists of their own."""

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
    """A large array is a view of a buffer that the next large one overwrites."""

    breaks = "4.1"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[Any, Any], Any] = {}

    def change_array(self, array: Any) -> Any:
        if array.nbytes < _LARGE_BYTES:
            return array
        buffer = self.buffers.setdefault((array.dtype, array.shape), np.empty_like(array))
        buffer[:] = array
        return buffer


class InputIsMarked(Mutant):
    breaks = "4.1"

    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        if type(obj) is dict:
            obj["seen"] = True
        return gathered


class SendsWhenOthersArrive(Mutant):
    """The source of a broadcast leaves a reference, which the others pickle when they arrive."""

    breaks = "4.2"

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
        return frames.decode(frames.encode(obj), src)

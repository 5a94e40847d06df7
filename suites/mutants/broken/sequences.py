"""Backends that are wrong only after other calls, or if ranks are late."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from disteval.errors import HarnessError

from suites.mutants.broken.base import Gathered, Mutant


class StaleBuffer(Mutant):
    breaks = "5.1"
    cause = "earlier call"
    previous: Any = None

    def all_gather_object(self, obj: Any) -> Any:
        gathered, previous = super().all_gather_object(obj), self.previous
        self.previous = gathered
        return gathered if previous is None else previous


class BroadcastAfterGatherIsStale(Mutant):
    breaks = "5.1"
    cause = "earlier call"
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


class LosesWhoIsLate(Mutant):
    """Replaces the object of a rank that is later than a third of a second by None."""

    breaks = "5.2"

    def all_gather_object(self, obj: Any) -> Any:
        arrived = time.monotonic()
        gathered = super().all_gather_object((arrived, obj))
        first = min(each for each, _ in gathered)
        return [None if each > first + 1 / 3 else item for each, item in gathered]


class LosesLateBroadcasts(Mutant):
    """Returns None on ranks that have waited longer than a third of a second for a broadcast."""

    breaks = "5.2"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        begin = time.monotonic()
        sent = super().broadcast_object(obj, src)
        return None if self.rank != src and time.monotonic() > begin + 1 / 3 else sent


class DoubleBufferOfEachObject(Mutant):
    """Uses two buffers in turn and one barrier, which suffices only for a single backend object."""

    breaks = "5.4"

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def _exchange(self, frame: Any) -> Any:
        member = self._member
        if member is None:
            return [frame]
        group, rank = member.group, member.rank
        buffers = group.__dict__.setdefault("buffers", ({}, {}))
        self.calls += 1
        buffer = buffers[self.calls % 2]
        buffer[rank] = frame
        group.barrier.wait()
        time.sleep(0.0005 * rank)
        return [buffer[other] for other in range(self.world_size)]


class SkipsTheBarrier(Mutant):
    """Does not wait until all ranks have read, so that a fast rank overwrites a slow one's data."""

    breaks = "5.1"

    def _exchange(self, frame: Any) -> Any:
        member: Any = self._member
        member.group.sent[member.rank] = frame
        member.group.barrier.wait()
        time.sleep(0.001 * member.rank)
        return list(member.group.sent)


class ReusesItsList(Mutant):
    """Returns the same list from every call."""

    breaks = "5.1"
    cause = "later call"

    def __init__(self) -> None:
        super().__init__()
        self.result: list[Any] = []

    def all_gather_object(self, obj: Any) -> Any:
        self.result[:] = super().all_gather_object(obj)
        return self.result


class LeaksDescriptors(Mutant):
    breaks = "5.3"

    def all_gather_object(self, obj: Any) -> Any:
        os.open(os.devnull, os.O_RDONLY)
        return super().all_gather_object(obj)


class LeaksDescriptorsOfFailures(Mutant):
    """Opens a connection when a collective has failed, and leaves the one before open."""

    breaks = "5.3"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except HarnessError:
            os.open(os.devnull, os.O_RDONLY)
            raise


class LeaksThreads(Mutant):
    breaks = "5.3"

    def all_gather_object(self, obj: Any) -> Any:
        if threading.active_count() < 2_000:
            threading.Thread(target=threading.Event().wait, args=(20,), daemon=True).start()
        return super().all_gather_object(obj)


class KeepsEveryResult(Gathered):
    breaks = "5.3"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: list[Any] = []

    def change(self, gathered: list[Any]) -> Any:
        self.kept.append(gathered)
        return gathered

"""Ranks as threads of one process: the reference that other backends must agree with.

Hundreds of ranks cost milliseconds, so exactness can be shown at world sizes that no machine at
hand could start as processes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from disteval import framing
from disteval.contract import BaseDistBackend, Rendezvous


class ThreadGroup:
    """What the threads of one world share.

    Args:
        world_size: How many threads.
        timeout: Seconds that a thread waits for another; then the group is broken for good.
    """

    def __init__(self, world_size: int, timeout: float) -> None:
        self.frames: list[bytes | bytearray] = [b""] * world_size
        self.barrier = threading.Barrier(world_size, timeout=timeout)
        self.numbers = [itertools.count(1) for _ in range(world_size)]
        self.members = 0


class ThreadsDist(BaseDistBackend):
    """One thread's view of its group.

    Args:
        group: The group; None stands for the one that this thread joined by `init_process`.
        rank: This thread's rank in ``group``.
    """

    launcher: ClassVar[str] = "threads"

    _groups: ClassVar[dict[Path, ThreadGroup]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _joined: ClassVar[threading.local] = threading.local()

    def __init__(self, group: ThreadGroup | None = None, rank: int = 0) -> None:
        self._own = None if group is None else (group, rank)

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join the group that the other threads of the same rendezvous join."""
        with cls._lock:
            fresh = ThreadGroup(world_size, min(rendezvous.timeout, threading.TIMEOUT_MAX))
            group = cls._groups.setdefault(rendezvous.path, fresh)
            group.members += 1
        cls._joined.group = group, rank, rendezvous.path

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group; the last one to leave ends it."""
        group, _, path = cls._joined.__dict__.pop("group", (None, 0, None))
        if group is not None:
            with cls._lock:
                group.members -= 1
                if group.members == 0:
                    cls._groups.pop(path, None)

    @property
    def is_initialized(self) -> bool:
        """Whether this thread is in a group."""
        return self._membership() is not None

    @property
    def rank(self) -> int:
        """This thread's rank; 0 outside of any group."""
        membership = self._membership()
        return membership[1] if membership else 0

    @property
    def world_size(self) -> int:
        """The number of threads; 1 outside of any group."""
        membership = self._membership()
        return membership[0].barrier.parties if membership else 1

    def all_gather_object(self, obj: Any) -> list[Any]:
        """See `BaseDistBackend.all_gather_object`."""
        call = self._next_call()
        frames = self._exchange(framing.encode(framing.Numbered(obj, call)))
        # Each thread takes memory of its own: arrays are views of it.
        return [framing.decode(bytearray(frame), rank, call) for rank, frame in enumerate(frames)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """See `BaseDistBackend.broadcast_object`."""
        self._check_src(src)
        call = self._next_call(src)
        mine = framing.Numbered(obj if self.rank == src else None, call)
        return framing.decode(bytearray(self._exchange(framing.encode(mine))[src]), src, call)

    def _numbers(self) -> Iterator[int]:
        membership = self._membership()
        return membership[0].numbers[membership[1]] if membership else super()._numbers()

    def _exchange(self, frame: bytes | bytearray) -> list[bytes | bytearray]:
        """Every thread's frame, in rank order."""
        membership = self._membership()
        if membership is None:
            return [frame]
        group, rank = membership
        group.frames[rank] = frame
        group.barrier.wait()
        frames = list(group.frames)
        # Nobody may put the next frame there before everybody has read this one.
        group.barrier.wait()
        return frames

    def _membership(self) -> tuple[ThreadGroup, int] | None:
        joined = getattr(self._joined, "group", None)
        return self._own or (joined and joined[:2])

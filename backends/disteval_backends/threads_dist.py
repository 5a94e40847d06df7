"""Ranks as threads of one process: the reference that other backends must agree with.

A group of hundreds of ranks starts in milliseconds, so exactness can be shown at world sizes that
no machine at hand could start as processes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from disteval.contract import Rendezvous
from disteval.frames import Buffer
from disteval.templates import BytesBaseDistBackend, Collectives


class ThreadGroup:
    """The memory that the threads of one group share.

    Args:
        world_size: The number of threads.
        timeout: The seconds that a thread waits for another; after that the group stays broken.
    """

    def __init__(self, world_size: int, timeout: float) -> None:
        self.sent: list[Buffer] = [b""] * world_size
        self.barrier = threading.Barrier(world_size, timeout=timeout)
        self.members = [ThreadRank(self, rank) for rank in range(world_size)]
        self.joined = 0


class ThreadRank:
    """One rank of a group."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.left = False
        self.collectives = Collectives()


class ThreadsDist(BytesBaseDistBackend):
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
        self._own = None if group is None else group.members[rank]
        # Other threads of the rank may use this object.
        self._of_maker: ThreadRank | None = getattr(self._joined, "member", None)

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join the group that the other threads of the same rendezvous join."""
        with cls._lock:
            fresh = ThreadGroup(world_size, min(rendezvous.timeout, threading.TIMEOUT_MAX))
            group = cls._groups.setdefault(rendezvous.path, fresh)
            group.joined += 1
        cls._joined.member, cls._joined.path = group.members[rank], rendezvous.path

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group; the last thread that leaves ends it."""
        member: ThreadRank | None = cls._joined.__dict__.pop("member", None)
        if member is not None:
            member.left = True
            with cls._lock:
                member.group.joined -= 1
                if member.group.joined == 0:
                    cls._groups.pop(cls._joined.path, None)

    @property
    def is_initialized(self) -> bool:
        """Whether this thread is in a group."""
        return self._member is not None

    @property
    def rank(self) -> int:
        """This thread's rank; 0 outside of any group."""
        member = self._member
        return member.rank if member else 0

    @property
    def world_size(self) -> int:
        """The number of threads; 1 outside of any group."""
        member = self._member
        return len(member.group.members) if member else 1

    @property
    def _member(self) -> ThreadRank | None:
        if member := self._own or getattr(self._joined, "member", None):
            return member
        made_by = self._of_maker
        return None if made_by is None or made_by.left else made_by

    @property
    def _collectives(self) -> Collectives:
        member = self._member
        return member.collectives if member else super()._collectives

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        # Each thread needs memory of its own, because arrays become views of it.
        return [bytearray(data) for data in self._exchange(mine)]

    def _exchange(self, mine: Buffer) -> list[Buffer]:
        """Return the bytes of every thread, in rank order."""
        member = self._member
        if member is None:
            return [mine]
        group = member.group
        group.sent[member.rank] = bytes(mine)  # the sender may change its array afterwards
        group.barrier.wait()
        received = list(group.sent)
        # No thread may put its next bytes there before every thread has these.
        group.barrier.wait()
        return received

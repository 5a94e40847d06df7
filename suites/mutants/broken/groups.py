"""Backends whose groups are not kept apart from those beside them and before them."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from disteval.contract import Rendezvous
from disteval_backends.threads_dist import ThreadGroup

from suites.mutants.broken.base import MUTANTS, Mutant
from suites.mutants.sockets import Sockets


class MeetsAtOnePlace(Mutant):
    """Meets at a path of its own, where the ranks of every world of that size meet."""

    breaks = "1.4"

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        fixed = Path("/fixed", str(world_size))
        super().init_process(rank, world_size, replace(rendezvous, directory=fixed))


class EndsAllWorlds(Mutant):
    """Cleans up after all groups of this machine when one of them is left."""

    breaks = "1.4"
    _groups: ClassVar[dict[Path, ThreadGroup]] = {}

    @classmethod
    def finalize_process(cls) -> None:
        joined = cls._joined.__dict__.get("member")
        super().finalize_process()
        if joined is not None:
            for group in [*cls._groups.values()]:
                group.barrier.abort()


class NeverLeaves(Mutant):
    """Does nothing when a group is left."""

    breaks = "1.5"

    @classmethod
    def finalize_process(cls) -> None:
        pass


class CannotJoinAgain(Mutant):
    """Refuses to join, as libraries do that can be initialised once a process."""

    breaks = "1.5"
    _seen: ClassVar[threading.local] = threading.local()

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if cls._seen.__dict__.setdefault("rendezvous", rendezvous) is not rendezvous:
            raise RuntimeError("the library is initialised already")
        super().init_process(rank, world_size, rendezvous)


class AnswersFromTheGroupBefore(Mutant):
    """Keeps results by the number of their call, also when the group is left."""

    breaks = "1.5"
    cause = "earlier call"
    _kept: ClassVar[threading.local] = threading.local()

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        cls._kept.call = 0

    def all_gather_object(self, obj: Any) -> Any:
        gathered, kept = super().all_gather_object(obj), self._kept.__dict__
        kept["call"] = kept.get("call", 0) + 1
        return kept.setdefault(f"result {kept['call']}", gathered)


class StaysAborted(Mutant):
    """Refuses every collective after one that failed, also in the next group."""

    breaks = "1.5"
    _failed: ClassVar[threading.local] = threading.local()

    def all_gather_object(self, obj: Any) -> Any:
        if hasattr(self._failed, "error"):
            raise RuntimeError("the library was aborted")
        try:
            return super().all_gather_object(obj)
        except threading.BrokenBarrierError as error:
            self._failed.error = error
            raise


class LeavesASocketOpen(Sockets):
    """Opens a socket for each group, which is never closed."""

    breaks = "1.5"
    launcher = "local"
    left_open: ClassVar[list[socket.socket]] = []

    @classmethod
    def finalize_process(cls) -> None:
        super().finalize_process()
        cls.left_open.append(socket.socket())


class LeavesAThread(Sockets):
    """Starts a thread for each group, which does not end with it."""

    breaks = "1.5"
    launcher = "local"

    @classmethod
    def finalize_process(cls) -> None:
        super().finalize_process()
        threading.Thread(target=threading.Event().wait, args=(20,), daemon=True).start()


MUTANTS += [LeavesASocketOpen, LeavesAThread]


class CannotLeave(Mutant):
    breaks = "1.5"

    @classmethod
    def finalize_process(cls) -> None:
        super().finalize_process()
        raise OSError("a file was closed before")

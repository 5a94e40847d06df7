"""Backends that do not expect calls of other threads, or of forked children."""

from __future__ import annotations

import mmap
import os
import pickle
import threading
from dataclasses import replace
from typing import Any

from disteval.contract import Rendezvous
from disteval.errors import HarnessError
from disteval.templates import Collectives

from suites.mutants.broken.base import Gathered, Mutant


class ThreadsMix(Mutant):
    """Numbers no collective, so that the calls of two threads of a rank meet each other."""

    breaks = "5.5"

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, replace(rendezvous, timeout=1.0))

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return [pickle.loads(item) for item in self._exchange(pickle.dumps(obj))]
        except threading.BrokenBarrierError as error:
            raise HarnessError("no rank came") from error


class OtherThreadsAreAlone(Mutant):
    """Takes a second thread of a rank for a world of its own."""

    breaks = "5.5"

    @property
    def _member(self) -> Any:
        return getattr(self._joined, "member", None)


class ChildReadsTheOldBuffer(Gathered):
    """Returns from a child what the rank has received before."""

    breaks = "5.6"
    previous: Any = None

    def all_gather_object(self, obj: Any) -> Any:
        if self.previous is not None and self.previous[0] != os.getpid():
            return self.previous[1]
        return super().all_gather_object(obj)

    def change(self, gathered: list[Any]) -> Any:
        self.previous = os.getpid(), gathered
        return gathered


class CountedInSharedMemory(Collectives):
    """Collectives whose number a child has in common with its rank."""

    def __init__(self) -> None:
        super().__init__()
        self.count = mmap.mmap(-1, 8)

    def __enter__(self) -> int:
        number = int.from_bytes(self.count[:], "little") + 1
        self.count[:] = number.to_bytes(8, "little")
        super().__enter__()
        return number


class ChildTakesANumber(Mutant):
    """Refuses a child, but counts its call as one of the rank's."""

    breaks = "5.6"

    @property
    def _collectives(self) -> Collectives:
        member = self._member
        if member is None:
            return super()._collectives
        kept = member.__dict__
        return kept.get("counted") or kept.setdefault("counted", CountedInSharedMemory())

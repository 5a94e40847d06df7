"""Backends that let ranks meet which are in different collectives."""

from __future__ import annotations

import pickle
import queue
import threading
from typing import Any, ClassVar

from disteval import FrameError
from disteval.contract import Rendezvous

from suites.mutants.broken.base import Mutant


class PairsWhateverComes(Mutant):
    """Sends objects without a number or a name of the collective."""

    breaks = "6.4"

    def all_gather_object(self, obj: Any) -> Any:
        return [pickle.loads(item) for item in self._exchange(pickle.dumps(obj))]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        return self.all_gather_object(obj)[src]


class SrcIsNotTold(Mutant):
    """Lets the source of a broadcast go on, whatever the others call."""

    breaks = "6.4"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        try:
            return super().broadcast_object(obj, src)
        except FrameError:
            if self.rank != src:
                raise
            return obj


class TakesLateObjects(Mutant):
    """Takes the next object of each rank, also one of a collective that has failed before."""

    breaks = "7.5"
    _settings: ClassVar[threading.local] = threading.local()

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        cls._settings.timeout = rendezvous.timeout

    def all_gather_object(self, obj: Any) -> Any:
        member = self._member
        if member is None:
            return super().all_gather_object(obj)
        own, ranks = member.rank, range(self.world_size)
        queues = member.group.__dict__.setdefault("queues", {})
        for other in ranks:
            queues.setdefault((own, other), queue.SimpleQueue()).put(pickle.dumps(obj))
        waiting = [queues.setdefault((other, own), queue.SimpleQueue()) for other in ranks]
        return [pickle.loads(one.get(timeout=self._settings.timeout)) for one in waiting]

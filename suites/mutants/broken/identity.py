"""Backends that report a wrong rank, world size or state."""

from __future__ import annotations

from typing import Any

from suites.mutants.broken.base import Mutant


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


class InItsGroupTooSoon(Mutant):
    breaks = "1.3"
    is_initialized = property(lambda self: True)


class CannotBeCreatedBeforeJoining(Mutant):
    breaks = "1.3"

    def __init__(self) -> None:
        super().__init__()
        if self._member is None:
            raise RuntimeError("call init_process first")


class RanksCountFromOne(Mutant):
    breaks = "1.1"
    rank = property(lambda self: super().rank + 1)


class SwapsRankAndSize(Mutant):
    breaks = "1.1"
    rank = property(lambda self: super().world_size)
    world_size = property(lambda self: super().rank)


class RankIsText(Mutant):
    breaks = "1.1"
    rank = property(lambda self: str(super().rank))


class EverybodyIsRank0(Mutant):
    breaks = "1.1"
    rank = 0  # type: ignore[assignment]

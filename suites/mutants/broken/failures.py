"""Backends that handle an error or a lost rank in a wrong way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from disteval import FrameError, RankError, frames
from disteval.contract import Rendezvous

from suites.mutants.broken.base import MUTANTS, Mutant
from suites.mutants.sockets import Sockets, read


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
        # Some libraries serialise before they communicate, and raise on one rank only.
        frames.decode(frames.encode(obj), 0)
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


class RepeatsItselfAfterAnError(Mutant):
    """Returns the result before the error from the collective after it."""

    breaks = "6.1"
    previous: Any = None
    failed = False

    def all_gather_object(self, obj: Any) -> Any:
        try:
            gathered = super().all_gather_object(obj)
        except RankError:
            self.failed = True
            raise
        stale, self.previous = (self.previous if self.failed else None), gathered
        self.failed = False
        return gathered if stale is None else stale


class OnlySrcIsTold(Mutant):
    """Raises the error only on src, and returns None on the other ranks."""

    breaks = "6.1"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        try:
            return super().broadcast_object(obj, src)
        except RankError as error:
            if error.rank == self.rank:
                raise
            return None


class UnloadableBroadcastBecomesNone(Mutant):
    breaks = "6.2"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        try:
            return super().broadcast_object(obj, src)
        except FrameError:
            return None


class UnloadableBecomesNone(Mutant):
    breaks = "6.2"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except FrameError:
            return [None] * self.world_size


class OnlySomeRefuseWhatIsTooLarge(Mutant):
    breaks = "6.3"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except RankError as error:
            if error.rank == self.rank or "over the cap" not in str(error):
                raise
            return [b""] * self.world_size


class OnlySrcRefusesWhatIsTooLarge(Mutant):
    breaks = "6.3"

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        try:
            return super().broadcast_object(obj, src)
        except RankError as error:
            if error.rank == self.rank or "over the cap" not in str(error):
                raise
            return b""


class UselessAfterTooMuch(Mutant):
    breaks = "6.3"
    failed = False

    def all_gather_object(self, obj: Any) -> Any:
        try:
            gathered = super().all_gather_object(obj)
        except RankError as error:
            self.failed = "over the cap" in str(error)
            raise
        return gathered[::-1] if self.failed else gathered


class SendsBeforeItReceives(Sockets):
    """Sends its bytes to each connection first, which ends once the other end has read enough."""

    breaks = "2.4"

    def _all_gather_bytes(self, mine: Any, sizes: Sequence[int]) -> list[Any]:
        for peer in self._peers:
            peer.sendall(mine)
        if self._rank > 0:
            return [read(self._peers[0], size) for size in sizes]
        received = [read(*each) for each in zip(self._peers, sizes[1:], strict=True)]
        for peer in self._peers:
            for each in received:
                peer.sendall(each)
        return [bytearray(mine), *received]


class DeadlocksOnEmpty(Mutant):
    breaks = "2.3"

    def all_gather_object(self, obj: Any) -> Any:
        if obj == b"" and type(obj) is bytes:
            threading.Event().wait(30)
        return super().all_gather_object(obj)


class WaitsForEver(Mutant):
    breaks = "7.4"

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, replace(rendezvous, timeout=3_600.0))


class GoesOnWithoutTheMissing(Mutant):
    breaks = "7.4"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except threading.BrokenBarrierError:
            return [obj] * self.world_size


class Lonely(Sockets):
    """Treats a closed connection as an answer, and goes on without the other ranks."""

    launcher = "local"

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except OSError:
            return [obj] * self.world_size


class LonelyAfterAnExit(Lonely):
    breaks = "7.1"


class LonelyAfterAKill(Lonely):
    breaks = "7.2"


class LonelyBesideTheFrozen(Lonely):
    breaks = "7.3"


MUTANTS += [
    SendsBeforeItReceives,
    LonelyAfterAnExit,
    LonelyAfterAKill,
    LonelyBesideTheFrozen,
]

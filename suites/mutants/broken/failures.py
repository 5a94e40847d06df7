"""Backends that handle an error or a lost rank in a wrong way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from disteval import FrameError, RankError, frames
from disteval.contract import Rendezvous

from suites.mutants.broken.base import MUTANTS, Mutant, add
from suites.mutants.sockets import Sockets, read


def _is_a(kind: type[Exception]) -> Callable[[Mutant, Exception], bool]:
    return lambda _, error: isinstance(error, kind)


def _is_of_another(backend: Mutant, error: Exception) -> bool:
    return isinstance(error, RankError) and error.rank != backend.rank


def _is_of_anothers_size(backend: Mutant, error: Exception) -> bool:
    return _is_of_another(backend, error) and "over the cap" in str(error)


class ForgivesInAllGathers(Mutant):
    """Returns None for each rank where an all-gather raises an error that the mutant forgives."""

    def all_gather_object(self, obj: Any) -> Any:
        try:
            return super().all_gather_object(obj)
        except Exception as error:
            if not self.change(error):
                raise
            return [None] * self.world_size


class ForgivesInBroadcasts(Mutant):
    """Returns None where a broadcast raises an error that the mutant forgives."""

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        try:
            return super().broadcast_object(obj, src)
        except Exception as error:
            if not self.change(error):
                raise
            return None


class UselessAfter(Mutant):
    """Gathers in another order after an error of some kind."""

    failed = False

    def all_gather_object(self, obj: Any) -> Any:
        try:
            gathered = super().all_gather_object(obj)
        except Exception as error:
            self.failed = self.failed or self.change(error)
            raise
        return gathered[::-1] if self.failed else gathered


_TOLD = "the others a message"
add(globals(), ForgivesInAllGathers, "6.1", SwallowsTheError=_is_a(RankError))
add(globals(), ForgivesInAllGathers, "6.1", _TOLD, OnlyTheGuiltyIsTold=_is_of_another)
add(globals(), ForgivesInAllGathers, "6.2", UnloadableBecomesNone=_is_a(FrameError))
add(globals(), ForgivesInAllGathers, "6.3", OnlySomeRefuseWhatIsTooLarge=_is_of_anothers_size)
add(
    globals(), ForgivesInAllGathers, "7.4",
    GoesOnWithoutTheMissing=_is_a(threading.BrokenBarrierError),
)  # fmt: skip
add(globals(), ForgivesInBroadcasts, "6.1", _TOLD, OnlySrcIsTold=_is_of_another)
add(globals(), ForgivesInBroadcasts, "6.2", UnloadableBroadcastBecomesNone=_is_a(FrameError))
add(globals(), ForgivesInBroadcasts, "6.3", OnlySrcRefusesWhatIsTooLarge=_is_of_anothers_size)
add(globals(), UselessAfter, "6.1", UselessAfterAnError=_is_a(RankError))
add(
    globals(), UselessAfter, "6.3",
    UselessAfterTooMuch=lambda self, error: "over the cap" in str(error),
)  # fmt: skip
add(globals(), UselessAfter, "6.4", UselessAfterAMismatch=_is_a(FrameError))


class HangsWhenOneCannotSend(Mutant):
    breaks = "6.1"
    cause = "the others a message"

    def all_gather_object(self, obj: Any) -> Any:
        # Some libraries serialise before they communicate, and raise on one rank only.
        frames.decode(frames.encode(obj), 0)
        return super().all_gather_object(obj)


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


class SendsBeforeItReceives(Sockets):
    """Sends its bytes to each connection first, which ends once the other end has read enough."""

    breaks = "2.4"
    cause = "before any receives"

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


MUTANTS += [SendsBeforeItReceives, LonelyAfterAnExit, LonelyAfterAKill, LonelyBesideTheFrozen]

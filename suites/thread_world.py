"""Ranks as threads of one process: exactness tests over many world sizes in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from harness import framing
from harness.contract import BaseDistBackend

T = TypeVar("T")
_SECONDS = 20.0


class ThreadBackend(BaseDistBackend):
    """One rank of a world of threads; frames travel through a shared list."""

    def __init__(self, rank: int, frames: list[Any], barrier: threading.Barrier) -> None:
        self._rank = rank
        self._frames = frames
        self._barrier = barrier

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return len(self._frames)

    def all_gather_object(self, obj: Any) -> list[Any]:
        self._frames[self._rank] = framing.encode(obj)
        self._barrier.wait()
        frames = list(self._frames)
        # Nobody may overwrite the list before everybody has read it.
        self._barrier.wait()
        return [framing.decode(frame, rank) for rank, frame in enumerate(frames)]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        self._check_src(src)
        if self._rank == src:
            self._frames[src] = framing.encode(obj)
        self._barrier.wait()
        frame = self._frames[src]
        self._barrier.wait()
        return framing.decode(frame, src)


def run_ranks(world_size: int, function: Callable[[ThreadBackend], T]) -> list[T | BaseException]:
    """Run ``function(backend)`` on each rank; what each returned or raised, in rank order."""
    frames: list[Any] = [None] * world_size
    barrier = threading.Barrier(world_size, timeout=_SECONDS)
    outcomes: list[T | BaseException] = [RuntimeError("never ended")] * world_size

    def run(rank: int) -> None:
        try:
            outcomes[rank] = function(ThreadBackend(rank, frames, barrier))
        except BaseException as error:
            outcomes[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _SECONDS)
    return outcomes


def values(outcomes: list[T | BaseException]) -> list[T]:
    """The returned values; raises what the first failing rank raised."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes  # type: ignore[return-value]

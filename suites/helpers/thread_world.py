"""Ranks as threads that start in milliseconds, so that each example has a world of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from disteval import frames
from disteval_backends.threads_dist import ThreadGroup, ThreadsDist

T = TypeVar("T")
_SECONDS = 60.0


class Counting(ThreadsDist):
    """A backend that records how many bytes this rank sends in each all-gather."""

    def __init__(self, inner: ThreadsDist) -> None:
        super().__init__(inner._own.group, inner._own.rank)
        self.sent: list[int] = []

    def all_gather_object(self, obj: Any) -> list[Any]:
        self.sent.append(len(frames.encode(obj)))
        return super().all_gather_object(obj)


def same_group(backend: ThreadsDist, template: type[ThreadsDist] = ThreadsDist) -> ThreadsDist:
    """Return another object for this rank of a backend's group."""
    return template(backend._own.group, backend.rank)


def run_ranks(world_size: int, function: Callable[[ThreadsDist], T]) -> list[T | BaseException]:
    """Run ``function(backend)`` on each rank, and return results or exceptions by rank."""
    group = ThreadGroup(world_size, _SECONDS)
    outcomes: list[T | BaseException] = [RuntimeError("never ended")] * world_size

    def run(rank: int) -> None:
        try:
            outcomes[rank] = function(ThreadsDist(group, rank))
        except BaseException as error:
            outcomes[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2 * _SECONDS
    while (alive := [one for one in threads if one.is_alive()]) and time.monotonic() < end:
        if group.barrier.n_waiting == len(alive) < world_size:
            group.barrier.abort()  # they wait for a rank that has ended
        alive[0].join(0.1)
    return outcomes


def values(outcomes: list[T | BaseException]) -> list[T]:
    """Return the values of all ranks, or raise the exception of the first rank that failed."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes  # type: ignore[return-value]


def assert_each_raised(
    outcomes: list[Any],
    kind: type[BaseException] | tuple[type[BaseException], ...],
    *words: str,
    guilty: int | None = None,
) -> None:
    """Check that every rank has raised this kind of error, with all these words.

    If it names a guilty rank, this is the one.
    """
    for outcome in outcomes:
        assert isinstance(outcome, kind), outcome
        assert all(word in str(outcome) for word in words), outcome
        assert guilty in (None, getattr(outcome, "rank", None)), outcome

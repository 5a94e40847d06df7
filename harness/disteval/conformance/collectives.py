"""The program of most rules, whose ranks call collectives one after another, and its trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from disteval.conformance.fingerprint import Gathered, describe
from disteval.conformance.rule import Trial
from disteval.contract import BaseDistBackend

Step = tuple[Any, int | None, float]
"""This rank's object, the source of a broadcast or None, and the seconds to wait before."""


class Payload(NamedTuple):
    """A number of bytes that a rank makes itself, see `payload`."""

    size: int
    owner: int | None = None


class Collective(NamedTuple):
    """One collective of a trial.

    Attributes:
        sent: The object of each rank.
        src: The source of a broadcast; None for an all-gather.
        late: The seconds by which ranks come late, by rank.
    """

    sent: list[Any]
    src: int | None = None
    late: Mapping[int, float] = {}

    def __str__(self) -> str:
        what = f"gather {describe(self.sent)}"
        if self.src is not None:
            what = f"broadcast {describe(self.sent)} from {self.src}"
        late = (f" (rank {rank} late by {seconds:g} s)" for rank, seconds in self.late.items())
        return what + "".join(late)


def trial_of(collectives: Iterable[Collective]) -> Trial:
    """Return a trial of `sequence`."""
    expected: list[Any] = []
    called: list[Collective] = []
    steps: list[list[Step]] = []
    for collective in collectives:
        sent, src, late = collective
        came = Gathered(payload(*o) if isinstance(o, Payload) else o for o in sent)
        expected.append(came if src is None else came[src])
        called.append(Collective(came, src, late))
        steps.append([(obj, src, late.get(rank, 0.0)) for rank, obj in enumerate(sent)])
    args = [list(of_rank) for of_rank in zip(*steps, strict=True)]
    return Trial(args, [expected] * len(args), collectives=called)


def payloads(world_size: int, size: int, largest: int) -> list[Payload]:
    """Let one rank send so many bytes, while the others send as many bytes as their rank."""
    ranks = range(world_size)
    return [Payload(size if rank == largest else rank) for rank in ranks]


def sequence(backend: BaseDistBackend, steps: list[Step]) -> list[Any]:
    """Call collectives one after another, some late.

    Returns:
        The results of all of them, which later calls must not have changed.
    """
    results: list[tuple[bool, Any]] = []
    for obj, src, delay in steps:
        mine = payload(*obj) if isinstance(obj, Payload) else obj
        if delay:
            time.sleep(delay)
        if src is None:
            gathered = backend.all_gather_object(mine)
            if type(gathered) is not list:
                kind = type(gathered).__name__
                raise TypeError(f"all_gather_object returned a {kind}, not a list")
            results.append((True, gathered))
        else:
            results.append((False, backend.broadcast_object(mine, src)))
    return [Gathered(result) if many else result for many, result in results]


@lru_cache(16)
def payload(size: int, owner: int | None = None) -> bytes:
    """Return bytes of that length that any truncation and any stripping of zeros changes.

    The bytes of an owner are words of 4 bytes that say whose they are and where they belong.
    """
    if owner is not None:
        words = np.arange(-(-size // 4), dtype="<u4") + np.uint32(owner % 256 << 24)
        return bytes(words.data.cast("B")[:size])
    return bytes(range(1, 252)) * (size // 251) + bytes(size % 251)


def raises(call: Callable[..., Any], *args: Any) -> bool:
    """Return whether a call raises an exception, of any kind."""
    try:
        call(*args)
    except Exception:  # the contract asks for an error of any class
        return True
    return False

"""Trials whose ranks call collectives one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from disteval.conformance.fingerprint import Gathered, describe
from disteval.conformance.on_ranks import Payload, Step, payload
from disteval.conformance.rules import Trial


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


class _Example:
    """The description of a trial; it is made when somebody reads it, for most pass."""

    def __init__(self, collectives: Sequence[tuple[Gathered, Collective]]) -> None:
        self._collectives = collectives

    def __str__(self) -> str:
        return "; ".join(starmap(_describe, self._collectives))


def _describe(came: Gathered, collective: Collective) -> str:
    what = f"gather {describe(came)}"
    if collective.src is not None:
        what = f"broadcast {describe(came)} from {collective.src}"
    late = collective.late.items()
    return what + "".join(f" (rank {rank} late by {seconds:g} s)" for rank, seconds in late)


def trial_of(collectives: Iterable[Collective]) -> Trial:
    """Return a trial of `disteval.conformance.on_ranks.sequence`."""
    expected: list[Any] = []
    described = []
    called: list[Collective] = []
    steps: list[list[Step]] = []
    for collective in collectives:
        sent, src, late = collective
        came = Gathered(payload(*o) if isinstance(o, Payload) else o for o in sent)
        expected.append(came if src is None else came[src])
        described.append((came, collective))
        called.append(Collective(came, src, late))
        steps.append([(obj, src, late.get(rank, 0.0)) for rank, obj in enumerate(sent)])
    args = [list(of_rank) for of_rank in zip(*steps, strict=True)]
    return Trial(args, [expected] * len(args), _Example(described), called)

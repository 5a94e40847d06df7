"""The summary of a trace: shares of time, who waited for whom, and the slowest rank."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

from disteval.arguments import is_count
from disteval.traces.reading import Row, WorldTrace
from disteval.traces.waits import KINDS, Doing, Waits, find_waits, key_of, timeline

_MOST_SAMPLES = 10**12  # in one batch; the files are not trusted
_MOST_NANOSECONDS = 10**18  # of a clock's offset; 31 years
_SLOWER = 1.1  # times the seconds of a sample of the others; less is not worth a sentence


@dataclass(frozen=True)
class Slowest:
    """The slowest rank of a world.

    Attributes:
        rank: Its number.
        waited: The seconds that the other ranks have waited for it, all together; 0 where ranks
            do not wait for each other.
        kind: What it did for longer than the others, one of `KINDS`.
        name: The name of that, such as ``predict``; empty if it has none.
        more: For how many seconds longer than the median of those that waited for it.
    """

    rank: int
    waited: float
    kind: str
    name: str
    more: float

    def __str__(self) -> str:
        waited = f"the others waited {self.waited:.3g} s for it; " if self.waited else ""
        if not self.kind:
            return f"rank {self.rank}: {waited}the trace does not show why"
        what = {"other": "code of which nothing is recorded", "idle": "waiting for orders"}
        doing = f"{self.kind} ({self.name})" if self.name else what.get(self.kind, self.kind)
        return f"rank {self.rank}: {waited}it spent {self.more:.3g} s more than they in {doing}"


@dataclass(frozen=True)
class RankTimes:
    """What one rank did, in seconds by kind."""

    row: Row
    seconds: dict[str, float]
    samples: int

    @property
    def total(self) -> float:
        """The seconds from its first event to its last."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class TraceSummary:
    """What the trace of one world shows."""

    world: WorldTrace
    ranks: list[RankTimes]
    waits: Waits
    slowest: Slowest | None
    failures: list[tuple[str, dict[str, Any]]]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as values that JSON has."""
        world, slowest = self.world, self.slowest
        return {
            "world": world.number,
            "title": world.title,
            "world_size": world.world_size,
            "seconds": (world.end - world.begin) / 1e9,
            "ranks": [_rank_to_json(rank) for rank in self.ranks],
            "missing": world.missing,
            "waits": [
                {"rank": rank, "for": other, "seconds": total / 1e9, "collectives": count}
                for (rank, other), (total, count) in sorted(self.waits.by_pair().items())
            ],
            "slowest": None if slowest is None else vars(slowest) | {"sentence": str(slowest)},
            "failures": [{"what": what, "ranks": ranks} for what, ranks in self.failures],
        }


def _rank_to_json(rank: RankTimes) -> dict[str, Any]:
    row = rank.row
    return {
        "rank": row.rank,
        "start": row.attempt,
        "host": row.header.get("host"),
        "seconds": rank.seconds | {"total": rank.total},
        "samples": rank.samples,
        "events": len(row.events),
        "left_out": row.dropped,
        "whole": row.is_whole,
        "clock": {
            "offset_seconds": _seconds(row.header.get("offset_ns"), -_MOST_NANOSECONDS),
            "error_seconds": _seconds(row.header.get("offset_error_ns"), 0),
            "from": row.header.get("offset_from"),
        },
    }


def _seconds(nanoseconds: Any, least: int) -> float | None:
    """Return nanoseconds of a file as seconds; None where they are not known."""
    return nanoseconds / 1e9 if is_count(nanoseconds, least, _MOST_NANOSECONDS) else None


def summarise(world: WorldTrace) -> TraceSummary:
    """Return what the trace of one world shows."""
    waits = find_waits(world)
    ranks = [_times(row, waits) for row in world.ranks]
    failures = [
        (event.name, event.arguments)
        for row in world.rows
        for event in row.events
        if event.category == "failure"
    ]
    return TraceSummary(world, ranks, waits, _slowest(ranks, waits), failures)


def told_apart(row: Row, waits: Waits) -> list[Doing]:
    """Return what a rank did, where waiting in a collective is a part of its own."""
    found = []
    for doing in timeline(row.events):
        event = doing.event
        wait = None
        if event is not None and event.category == "collective" and row.rank is not None:
            key = key_of(event)
            wait = None if key is None else waits.waits.get((key, row.rank))
        # The rank may have been started again, and have counted its collectives from 1 again.
        other = event is None or wait is None or wait.until - wait.nanoseconds != event.start
        if event is None or wait is None or other or wait.until <= doing.start:
            found.append(doing)
            continue
        middle = min(wait.until, doing.end)
        found.append(Doing(doing.start, middle, event._replace(category="waiting")))
        if middle < doing.end:
            found.append(doing._replace(start=middle))
    return found


def _times(row: Row, waits: Waits) -> RankTimes:
    spent = dict.fromkeys(KINDS, 0)
    for doing in told_apart(row, waits):
        spent[doing.kind] += doing.end - doing.start
    counts = [e.arguments.get("samples") for e in row.events if e.category == "data"]
    samples = sum(int(count) for count in counts if count and is_count(count, 0, _MOST_SAMPLES))
    return RankTimes(row, {kind: spent[kind] / 1e9 for kind in KINDS}, samples)


def _slowest(ranks: list[RankTimes], waits: Waits) -> Slowest | None:
    caused: Counter[int] = Counter()
    for wait in waits.waits.values():
        caused[wait.awaited] += wait.nanoseconds
    if caused:
        rank, nanoseconds = caused.most_common(1)[0]
        (kind, name), more = next(iter(waits.behind[rank].most_common(1)), (("", ""), 0))
        return Slowest(rank, nanoseconds / 1e9, kind if more else "", name, more / 1e9)
    return _slowest_by_sample(ranks)


def _slowest_by_sample(ranks: list[RankTimes]) -> Slowest | None:
    """Return the rank that takes longest for a sample, where ranks do not wait for each other."""
    kinds = ("data", "compute", "metric")
    rates = {
        r.row.rank: {kind: r.seconds[kind] / r.samples for kind in kinds}
        for r in ranks
        if r.samples and r.row.rank is not None
    }
    if len(rates) < 2:
        return None
    rank = max(rates, key=lambda r: sum(rates[r].values()))
    others = [each for other, each in rates.items() if other != rank]
    usual = {kind: statistics.median(each[kind] for each in others) for kind in kinds}
    if sum(rates[rank].values()) < _SLOWER * sum(usual.values()):
        return None
    kind = max(kinds, key=lambda k: rates[rank][k] - usual[k])
    samples = next(r.samples for r in ranks if r.row.rank == rank)
    return Slowest(rank, 0.0, kind, "", (rates[rank][kind] - usual[kind]) * samples)

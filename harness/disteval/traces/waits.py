"""What a rank did at each moment, and who waited for whom.

In each collective the ranks wait for the one that enters last.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from disteval.traces.reading import Row, TraceEvent, WorldTrace

KINDS = ("data", "compute", "metric", "collective", "waiting", "start", "other", "idle")
"""What a rank can be doing.

A collective moves data; until the last rank has entered it, the others are waiting. At the start a
rank imports its backend and joins the group. Other time is that of an order in which nothing else
was recorded, and between orders a rank is idle.
"""

Key = tuple[str, int]
"""The group and the number of a collective."""


class Wait(NamedTuple):
    """The time for which a rank waited in one collective; ``until`` is when the wait was over."""

    rank: int
    awaited: int
    key: Key
    until: int
    nanoseconds: int


@dataclass
class Waits:
    """The waits of one world.

    Attributes:
        waits: Each wait, by the collective and the rank.
        behind: What ranks that were waited for did for longer than the median of those that waited,
            in nanoseconds, by rank and by the kind and the name of what they did.
    """

    waits: dict[tuple[Key, int], Wait] = field(default_factory=dict)
    behind: dict[int, Counter[tuple[str, str]]] = field(default_factory=dict)

    def by_pair(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the nanoseconds and the number of waits, by who waited and for whom."""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for wait in self.waits.values():
            total, count = found.get((wait.rank, wait.awaited), (0, 0))
            found[wait.rank, wait.awaited] = total + wait.nanoseconds, count + 1
        return found


def key_of(event: TraceEvent) -> Key | None:
    """Return the group and the number of an event; None if it has no number."""
    number = event.arguments.get("number")
    return (str(event.arguments.get("group")), number) if isinstance(number, int) else None


class Doing(NamedTuple):
    """What a rank did without a pause; ``event`` is the innermost one, None between events."""

    start: int
    end: int
    event: TraceEvent | None

    @property
    def kind(self) -> str:
        """One of `KINDS`, before waiting is told from moving."""
        if self.event is None:
            return "idle"
        return self.event.category if self.event.category in KINDS else "other"

    @property
    def what(self) -> str:
        """The name of the event; empty where a rank did something of which nothing is recorded."""
        return "" if self.event is None or self.event.category == "order" else self.event.name


def timeline(events: Iterable[TraceEvent]) -> Iterator[Doing]:
    """Yield what a rank did from its first event to its last, each moment once."""
    inside: list[TraceEvent] = []
    at: int | None = None
    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        at = event.start if at is None else at
        while inside and inside[-1].end <= event.start:
            last = inside.pop()
            if last.end > at:
                yield Doing(at, last.end, last)
                at = last.end
        if event.start > at:
            yield Doing(at, event.start, inside[-1] if inside else None)
            at = event.start
        inside.append(event)
    while inside:
        last = inside.pop()
        if at is not None and last.end > at:
            yield Doing(at, last.end, last)
            at = last.end


class Before(NamedTuple):
    """A collective of one rank, and how long it did what since its collective before."""

    event: TraceEvent
    spent: Counter[tuple[str, str]]


def between_collectives(row: Row) -> list[Before]:
    """Return the numbered collectives of a row, each with the time by kind and name before it."""
    spans = iter([*timeline(row.events)])
    found, span = [], next(spans, None)
    until: int | None = None  # the end of the last collective, of which others may be a part
    for event in sorted(row.events, key=lambda e: (e.start, -e.end)):
        if event.category != "collective" or (until is not None and event.end <= until):
            continue
        until = event.end
        if key_of(event) is None:
            continue
        spent: Counter[tuple[str, str]] = Counter()
        while span is not None and span.start < event.start:
            inside = min(span.end, event.start) - span.start
            if span.kind != "collective":
                spent[span.kind, span.what] += inside
            span = (
                next(spans, None) if span.end <= event.start else span._replace(start=event.start)
            )
        found.append(Before(event, spent))
        while span is not None and span.end <= event.end:
            span = next(spans, None)
    return found


def find_waits(world: WorldTrace) -> Waits:
    """Return who waited for whom in the collectives of a world."""
    together: dict[Key, dict[int, Before]] = {}
    for row in world.ranks:
        assert row.rank is not None
        for before in between_collectives(row):
            key = key_of(before.event)
            assert key is not None
            together.setdefault(key, {})[row.rank] = before
    found = Waits()
    for key, ranks in together.items():
        if len(ranks) > 1:
            _add(found, key, ranks)
    return found


def _add(found: Waits, key: Key, ranks: dict[int, Before]) -> None:
    events = {rank: before.event for rank, before in ranks.items()}
    waiting: dict[int, list[Counter[tuple[str, str]]]] = {}
    order = sorted(events, key=lambda rank: events[rank].start)
    starts = [events[rank].start for rank in order]
    # If some rank left before another one entered, each needed the root alone.
    left_early = min(event.end for event in events.values()) < starts[-1]
    for rank, event in events.items():
        root = event.arguments.get("root")
        if left_early and isinstance(root, int) and root in events:
            other = root
        else:  # the last rank that entered before this one left; itself if it did not wait
            latest = starts[bisect_right(starts, event.end) - 1]
            other = order[bisect_left(starts, latest)]
        until = min(event.end, events[other].start)
        if until > event.start:
            found.waits[key, rank] = Wait(rank, other, key, until, until - event.start)
            waiting.setdefault(other, []).append(ranks[rank].spent)
    for rank, others in waiting.items():
        behind = found.behind.setdefault(rank, Counter())
        for what, spent in ranks[rank].spent.items():
            usual = statistics.median(each[what] for each in others)
            behind[what] += max(0, round(spent - usual))

"""Who waited for whom: in each collective the ranks wait for the one that enters last."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from disteval.traces.reading import TraceEvent, WorldTrace
from disteval.traces.times import Before, between_collectives

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

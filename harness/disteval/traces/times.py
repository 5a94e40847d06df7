"""The times of one row: what a rank did at each moment, and how long it did what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from disteval.traces.reading import Row, TraceEvent

KINDS = ("data", "compute", "metric", "collective", "waiting", "start", "other", "idle")
"""What a rank can be doing.

A collective moves data; until the last rank has entered it, the others are waiting. At the start a
rank imports its backend and joins the group. Other time is that of an order in which nothing else
was recorded, and between orders a rank is idle.
"""


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


def outer_collectives(row: Row) -> list[TraceEvent]:
    """Return the numbered collectives of a row that are not part of another one, in order."""
    found: list[TraceEvent] = []
    until = None
    for event in sorted(row.events, key=lambda e: (e.start, -e.end)):
        if event.category != "collective" or (until is not None and event.end <= until):
            continue
        until = event.end
        if isinstance(event.arguments.get("number"), int):
            found.append(event)
    return found


class Before(NamedTuple):
    """A collective of one rank, and how long it did what since its collective before."""

    event: TraceEvent
    spent: Counter[tuple[str, str]]


def between_collectives(row: Row) -> list[Before]:
    """Return the collectives of a row, each with the time by kind and name before it."""
    outer = outer_collectives(row)
    spans = iter([*timeline(row.events)])
    found, span = [], next(spans, None)
    for event in outer:
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

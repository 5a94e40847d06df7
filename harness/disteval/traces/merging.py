"""All rows of a trace in one file of the Trace Event Format, in its JSON object form.

Of one row, events may only nest; those that overlap otherwise get a row of their own. Arrows lead
from the rank that entered a collective last to those that waited for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from disteval.files import write_atomically
from disteval.traces.reading import Event, Row, WorldTrace
from disteval.traces.waits import Waits

_ROWS = 1_000_000  # between the numbers of the rows of a rank that overlap


def write_merged(path: Path, worlds: Iterable[tuple[WorldTrace, Waits]]) -> None:
    """Write the rows of all worlds to one file, with arrows for the waits."""

    def write(file: BinaryIO) -> None:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
        between = b"\n"
        for world, waits in worlds:
            for event in merged_events(world, waits):
                file.write(between + json.dumps(event).encode())
                between = b",\n"
        file.write(b"\n]}\n")

    write_atomically(path, write)


def merged_events(world: WorldTrace, waits: Waits) -> Iterator[dict[str, Any]]:
    """Yield the events of one world as the format has them."""
    name = f"world {world.number} {world.title}".strip()
    yield _metadata(world, 0, "process_name", name=name)
    tids: dict[int, int] = {}
    for at, row in enumerate(world.rows):
        tid = _tid(row)
        if row.rank is not None:
            tids[row.rank] = tid
        for lane, events in enumerate(lanes(row.events)):
            number = tid + lane * _ROWS
            title = row.name if lane == 0 else f"{row.name}, overlapping {lane}"
            yield _metadata(world, number, "thread_name", name=title)
            yield _metadata(world, number, "thread_sort_index", sort_index=at * 100 + lane)
            for event in events:
                yield _complete(world, number, event)
    yield from _arrows(world, waits, tids)


def lanes(events: Iterable[Event]) -> list[list[Event]]:
    """Return events in rows, in each of which they nest or follow each other."""
    rows: list[list[Event]] = [[]]
    inside: list[list[int]] = [[]]  # the ends of the events that are open in each row
    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        for ends in inside:
            while ends and ends[-1] <= event.start:
                ends.pop()
        fitting = (at for at, ends in enumerate(inside) if not ends or event.end <= ends[-1])
        at = next(fitting, len(rows))
        if at == len(rows):
            rows.append([])
            inside.append([])
        rows[at].append(event)
        inside[at].append(event.end)
    return rows


def _tid(row: Row) -> int:
    return (1 if row.rank is None else row.rank + 2) + (row.attempt - 1) * 100 * _ROWS


def _complete(world: WorldTrace, tid: int, event: Event) -> dict[str, Any]:
    return {
        "name": event.name, "cat": event.category, "ph": "X", "pid": world.number, "tid": tid,
        "ts": event.start / 1000, "dur": (event.end - event.start) / 1000, "args": event.arguments,
    }  # fmt: skip


def _metadata(world: WorldTrace, tid: int, kind: str, **about: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": world.number, "tid": tid, "args": about}


def _arrows(world: WorldTrace, waits: Waits, tids: dict[int, int]) -> Iterator[dict[str, Any]]:
    for number, wait in enumerate(waits.waits.values()):
        arrow = {
            "name": "waited for", "cat": "waiting", "pid": world.number, "ts": wait.until / 1000,
            "id": f"{world.number}.{number}",
        }  # fmt: skip
        yield arrow | {"ph": "s", "tid": tids[wait.awaited]}
        yield arrow | {"ph": "f", "bp": "e", "tid": tids[wait.rank]}

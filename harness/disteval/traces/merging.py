"""All rows of a trace in one file of the Trace Event Format, in its JSON object form.

Of one row, events may only nest; those that overlap otherwise get a row of their own. Arrows lead
from the rank that entered a collective last to those that waited for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from disteval.errors import UsageError
from disteval.files import write_atomically
from disteval.traces.reading import TraceEvent, WorldTrace
from disteval.traces.waits import Key, Wait, Waits, key_of

_ROWS = 1_000_000  # between the numbers of the rows of a rank that overlap
_MOST_LANES = 100  # of one rank, whose order is kept among those of others
_ARROWS = 1 << 24  # more than a world has; Perfetto shows no arrow whose identity is not a number


def write_merged(path: Path, worlds: Iterable[tuple[WorldTrace, Waits]]) -> None:
    """Write the rows of all worlds to one file, with arrows for the waits."""

    def write(file: BinaryIO) -> None:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
        between = b"\n"
        for world, waits in worlds:
            for event in merged_events(world, waits):
                file.write(between + _in_utf8(event))
                between = b",\n"
        file.write(b"\n]}\n")

    write_atomically(path, write)


def merged_events(world: WorldTrace, waits: Waits) -> Iterator[dict[str, Any]]:
    """Yield the events of one world as the format has them."""
    name = f"world {world.number} {world.title}".strip()
    yield _metadata(world, 0, "process_name", name=name)
    drawn: dict[tuple[Key | None, int | None], tuple[int, TraceEvent]] = {}
    for at, row in enumerate(world.rows):
        tid = (1 if row.rank is None else row.rank + 2) + (row.attempt - 1) * 100 * _ROWS
        for lane, events in enumerate(lanes(row.events)):
            number = tid + lane * _ROWS
            title = row.name if lane == 0 else f"{row.name}, overlapping {lane}"
            yield _metadata(world, number, "thread_name", name=title)
            yield _metadata(world, number, "thread_sort_index", sort_index=at * 100 + lane)
            for event in events:
                yield {
                    "name": event.name, "cat": event.category, "ph": "X", "pid": world.number,
                    "tid": number, "args": event.arguments, "ts": event.start / 1000,
                    "dur": (event.end - event.start) / 1000,
                }  # fmt: skip
                drawn[key_of(event), row.rank] = number, event
    for number, wait in enumerate(waits.waits.values()):
        yield from _arrow(
            world, number, wait, drawn[wait.key, wait.awaited], drawn[wait.key, wait.rank]
        )


def lanes(events: Iterable[TraceEvent]) -> list[list[TraceEvent]]:
    """Return events in rows, in each of which they nest or follow each other.

    Raises:
        UsageError: So many overlap that no rank's threads can have recorded them.
    """
    rows: list[list[TraceEvent]] = [[]]
    inside: list[list[int]] = [[]]  # the ends of the events that are open in each row
    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        for ends in inside:
            while ends and ends[-1] <= event.start:
                ends.pop()
        fitting = (at for at, ends in enumerate(inside) if not ends or event.end <= ends[-1])
        at = next(fitting, len(rows))
        if at == _MOST_LANES:
            raise UsageError(
                f"more than {_MOST_LANES} events of one rank overlap, which --trace does not write"
            )
        if at == len(rows):
            rows.append([])
            inside.append([])
        rows[at].append(event)
        inside[at].append(event.end)
    return rows


def _metadata(world: WorldTrace, tid: int, kind: str, **about: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": world.number, "tid": tid, "args": about}


def _arrow(
    world: WorldTrace,
    number: int,
    wait: Wait,
    awaited: tuple[int, TraceEvent],
    own: tuple[int, TraceEvent],
) -> Iterator[dict[str, Any]]:
    """Yield both ends of an arrow, where there is an event at each: readers refuse another one."""
    if all(event.start <= wait.until < event.end for _, event in (awaited, own)):
        arrow = {
            "name": "waited for", "cat": "waiting", "pid": world.number, "ts": wait.until / 1000,
            "id": world.number * _ARROWS + number,
        }  # fmt: skip
        yield arrow | {"ph": "s", "tid": awaited[0]}
        yield arrow | {"ph": "f", "bp": "e", "tid": own[0]}


def _in_utf8(value: Any) -> bytes:
    """Return JSON of which Perfetto reads all: it can't read everything that JSON allows.

    It refuses a file with a character that is escaped as two surrogates, so those are in UTF-8, and
    takes the quote after two backslashes for an escaped one. A surrogate that stands alone, which
    is no character, becomes a question mark.
    """
    text = json.dumps(value, ensure_ascii=False).replace("\\\\", "\\u005c")
    return text.encode(errors="replace")

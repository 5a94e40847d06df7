"""The files of a trace, read again: also those of ranks that were killed while they wrote."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from disteval.arguments import is_count
from disteval.errors import UsageError
from disteval.traces.folder import NAME, Place, file_name
from disteval.traces.recorder import VERSION

_MOST_BYTES = 1 << 28  # of one file; 200,000 events take less than 100 MiB
_MOST_EVENTS = 4_000_000  # of one world, which is read at once
_MOST_RANKS = 100_000
_MOST_HEADER = 1 << 16
_LARGEST = 10**18  # nanoseconds; 31 years
_END_BYTES = 100  # at the end of a file, in which its last line is found
_REMEDY = "give a folder that --trace has written"

_log = logging.getLogger("disteval.traces")


class TraceEvent(NamedTuple):
    """What has taken place on one rank; times are nanoseconds of the leader's clock."""

    category: str
    name: str
    start: int
    end: int
    arguments: dict[str, Any]


@dataclass
class Row:
    """What one rank has recorded, or the leader.

    Attributes:
        rank: The number of the rank; None is the leader.
        attempt: 1, or more for a rank that was started again.
        header: What the file says of itself.
        events: In the order in which they were recorded.
        dropped: The number of events that were left out, because there were too many.
        is_whole: Whether the file was written to its end.
    """

    rank: int | None
    attempt: int
    header: dict[str, Any]
    events: list[TraceEvent] = field(default_factory=list)
    dropped: int = 0
    is_whole: bool = False

    @property
    def name(self) -> str:
        """The name of the row."""
        own = "leader" if self.rank is None else f"rank {self.rank}"
        return own if self.attempt == 1 else f"{own}, start {self.attempt}"


@dataclass
class WorldTrace:
    """What the ranks of one world have recorded."""

    number: int
    title: str
    world_size: int
    rows: list[Row]

    @property
    def ranks(self) -> list[Row]:
        """The rows of the ranks."""
        return [row for row in self.rows if row.rank is not None]

    @property
    def missing(self) -> list[int]:
        """The ranks that have no file."""
        found = {row.rank for row in self.rows}
        return [rank for rank in range(self.world_size) if rank not in found]

    @property
    def begin(self) -> int:
        """The time of the first event."""
        return min((event.start for row in self.rows for event in row.events), default=0)

    @property
    def end(self) -> int:
        """The time at which the last event ends."""
        return max((event.end for row in self.rows for event in row.events), default=0)


def read_worlds(folder: Path) -> Iterator[WorldTrace]:
    """Read the trace in a folder, one world after another.

    Raises:
        UsageError: There is none, it is damaged, or there are files of several runs.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; {_REMEDY}")
    # Opening a pipe would wait for somebody to write to it.
    files = [path for path in folder.iterdir() if path.is_file()]
    found = [(match, path) for path in files if (match := NAME.fullmatch(path.name))]
    if not found:
        raise UsageError(f"{folder} holds no trace, which has files world-*.jsonl; {_REMEDY}")
    worlds: dict[int, list[tuple[int | None, int, Path]]] = {}
    for match, path in found:
        world, rank, attempt = match.groups()
        row = None if rank is None else int(rank), int(attempt or 1), path
        worlds.setdefault(int(world), []).append(row)
    _check_run([path for _, path in sorted(found, key=lambda each: each[1])])
    return (_read_world(number, files) for number, files in sorted(worlds.items()))


def warn_of_unended(place: Place) -> None:
    """Warn if files of ranks, which have all ended, lack their ends."""
    folder = Path(place.folder)
    files = {rank: folder / file_name(place.world, rank) for rank in range(place.world_size)}
    unended = []
    for rank, path in files.items():
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _END_BYTES))
            if b'\n{"dropped"' in file.read():
                continue
        unended.append(rank)
    if unended:
        _log.warning(
            "the trace in %s lacks the end of rank%s %s: the disk may be full, or the rank was "
            "killed; results do not depend on it",
            folder, "s" * (len(unended) > 1), ", ".join(map(str, unended)),
        )  # fmt: skip


def _check_run(paths: list[Path]) -> None:
    """Refuse files of several runs before any is read as a whole."""
    first: dict[str, Path] = {}
    for path in paths:
        with path.open("rb") as file:
            line = file.readline(_MOST_HEADER)
        if line.endswith(b"\n"):
            first.setdefault(_header(line, path)["run"], path)
    if len(first) > 1:
        names = " and ".join(path.name for path in [*first.values()][:2])
        raise UsageError(
            f"{paths[0].parent} holds files of {len(first)} runs, such as {names}; put the files "
            f"of each run into a folder of their own"
        )


def _read_world(number: int, files: list[tuple[int | None, int, Path]]) -> WorldTrace:
    rows, count = [], 0
    for rank, attempt, path in sorted(files, key=lambda f: (-1 if f[0] is None else f[0], f[1])):
        row = _read_row(rank, attempt, path)
        count += len(row.events)
        if count > _MOST_EVENTS:
            raise UsageError(
                f"world {number} in {path.parent} has more than {_MOST_EVENTS} events, too many to "
                f"read at once; remove the files of some of its ranks"
            )
        rows.append(row)
    _align(rows)
    headers = [row.header for row in rows if row.header]
    title = str(headers[0].get("title", "")) if headers else ""
    sizes = [each.get("world_size") for each in headers]
    size = max((int(s) for s in sizes if s and is_count(s, 0, _MOST_RANKS)), default=0)
    return WorldTrace(number, title, size, rows)


def _read_row(rank: int | None, attempt: int, path: Path) -> Row:
    row = Row(rank, attempt, {})
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise UsageError(f"{path} has {size} bytes, and at most {_MOST_BYTES} are read; {_REMEDY}")
    # What comes after the last end of a line was being written when the rank was killed.
    header, *lines = path.read_bytes().split(b"\n")[:-1] or [b""]
    if not header:
        return row
    row.header = _header(header, path)
    for number, line in enumerate(lines, start=2):
        match _parsed(line):
            case {"dropped": dropped} if is_count(dropped, 0):
                row.is_whole, row.dropped = True, dropped
            case [str(category), str(name), start, duration, dict(arguments)] if is_count(
                start, -_LARGEST, _LARGEST
            ) and is_count(duration, 0, _LARGEST):
                row.events.append(TraceEvent(category, name, start, start + duration, arguments))
            case _:
                raise UsageError(f"{path} is damaged in line {number}; {_REMEDY}")
    return row


def _header(line: bytes, path: Path) -> dict[str, Any]:
    """Return what the first line of a file says of it."""
    about = _parsed(line)
    match about:
        case {"version": version, "run": str()} if version != VERSION:
            raise UsageError(
                f"{path} has version {version!r:.50}, and this disteval reads version {VERSION}; "
                f"read it with the disteval that has written it"
            )
        case {"version": _, "run": str()}:
            return dict(about)
        case _:
            raise UsageError(f"{path} does not say which run it is of; {_REMEDY}")


def _parsed(line: bytes) -> Any:
    """Return the value of one line; None if it is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _align(rows: list[Row]) -> None:
    """Bring the rows of `recording` on one clock, where hosts had no leader to compare theirs."""
    known = [row for row in rows if row.header and not row.header["run"]]
    for row in known[1:]:
        first, own = known[0].header, row.header
        walls = own.get("wall_ns"), first.get("wall_ns")
        are_known = all(is_count(wall, -100 * _LARGEST, 100 * _LARGEST) for wall in walls)
        if own.get("clock") != first.get("clock") and are_known:
            shift = walls[0] - walls[1]  # type: ignore[operator]
            row.events = [e._replace(start=e.start + shift, end=e.end + shift) for e in row.events]
            own |= {"offset_ns": shift, "offset_error_ns": -1, "offset_from": "wall clocks"}

"""Pictures of traces: a row a rank, over time, in the colours of what the rank did."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from disteval.errors import UsageError
from disteval.text import visible
from disteval.traces.reading import Row, WorldTrace, read_worlds
from disteval.traces.summary import RankTimes, Summary, summarise, told_apart
from disteval.traces.times import KINDS
from disteval.traces.waits import Waits

LOOK = {
    "compute": ("var(--series-0)", "#0a57a4", 1.0),
    "data": ("var(--series-1)", "#a8450a", 1.0),
    "metric": ("var(--series-2)", "#1b6a3d", 1.0),
    "collective": ("var(--series-3)", "#8a2476", 1.0),
    "waiting": ("var(--series-7)", "#56606b", 0.25),
    "other": ("var(--series-4)", "#5b4a00", 0.55),
}
"""The colour of each kind on a page and in a file of its own, and the height of its bars.

Waiting is a thin line, so that it is not told by its colour alone; idle ranks have no bar.
"""

_COLUMNS = 600
_LEFT, _RIGHT, _ROW, _BAR, _TOP = 62, 26, 24, 16, 26
_MOST_ROWS = 32
_MOST_TICKS = 6
_UNITS = [(1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min")]


class Picture(NamedTuple):
    """One trace as a page shows it, and what its picture leaves out."""

    name: str
    summary: Summary
    svg: str
    left_out: str

    @property
    def ranks(self) -> list[RankTimes]:
        """The ranks that are drawn."""
        return self.summary.ranks[:_MOST_ROWS]


def make_pictures(folders: Sequence[Path]) -> list[Picture]:
    """Draw the longest world of each trace, all over the same seconds.

    Raises:
        UsageError: A folder holds no trace, or it is damaged.
    """
    chosen: list[tuple[str, Summary, int]] = []
    for folder in folders:
        longest, count = None, 0
        for world in read_worlds(folder):
            count += 1
            if longest is None or world.end - world.begin > longest.end - longest.begin:
                longest = world
        _check_drawable(folder, longest)
        assert longest is not None
        chosen.append((folder.name, summarise(longest), count))
    seconds = max((_length(summary) for _, summary, _ in chosen), default=0.0)
    return [
        Picture(name, summary, draw(summary, seconds), _left_out(summary, count))
        for name, summary, count in chosen
    ]


def draw_alone(folder: Path, summary: Summary) -> str:
    """Return the picture of one world as a file of its own.

    Raises:
        UsageError: No rank has recorded anything.
    """
    _check_drawable(folder, summary.world)
    return draw(summary, _length(summary), alone=True) + "\n"


def _check_drawable(folder: Path, world: WorldTrace | None) -> None:
    rows = [] if world is None else world.ranks
    if not any(event.category != "start" for row in rows for event in row.events):
        raise UsageError(f"{folder} holds a trace without events of a rank; nothing to draw")


def _length(summary: Summary) -> float:
    """Return the seconds from the first event of a rank to the last one's end."""
    end = max(e.end for row in summary.world.ranks for e in row.events if e.category != "start")
    return max((end - _begin(summary)) / 1e9, 1e-6)


def _begin(summary: Summary) -> int:
    """Return the time at which the start of the ranks is over, which is not drawn."""
    events = [event for row in summary.world.ranks for event in row.events]
    running = [event.start for event in events if event.category != "start"]
    return min(running or [event.start for event in events])


def _left_out(summary: Summary, worlds: int) -> str:
    """Return what the picture does not show; empty if that is nothing."""
    parts = []
    start = max(rank.seconds["start"] for rank in summary.ranks)
    if start > 0:
        parts.append(f"without the {start:.2g} s in which the ranks started")
    if worlds > 1:
        parts.append(f"the longest of {worlds} worlds is drawn")
    if (ranks := len(summary.ranks)) > _MOST_ROWS:
        parts.append(f"the first {_MOST_ROWS} of {ranks} ranks are drawn")
    if cut := [rank.row.name for rank in summary.ranks if rank.row.dropped]:
        parts.append(f"events were left out of {', '.join(cut[:_MOST_ROWS])}")
    if cut := [rank.row.name for rank in summary.ranks if not rank.row.is_whole]:
        parts.append(f"the files of {', '.join(cut[:_MOST_ROWS])} are truncated")
    return "; ".join(parts)


def draw(summary: Summary, seconds: float, *, alone: bool = False) -> str:
    """Draw the ranks of a world as an ``svg`` element.

    Args:
        summary: The world.
        seconds: The length of the time axis.
        alone: Whether it is a file of its own, which has no style sheet to take colours from.
    """
    rows = [row for row in summary.world.ranks if row.events][:_MOST_ROWS]
    height, width = _TOP + len(rows) * _ROW + 30, _LEFT + _COLUMNS + _RIGHT
    ink = "#1c2126" if alone else "currentColor"
    label = visible(f"what {len(rows)} ranks did in {seconds:.3g} s", keep="")
    space = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    parts = [
        f'<svg{space} viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(label)} '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{ink}">'
    ]
    if alone:
        parts.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    parts += _legend(alone)
    begin = _begin(summary)
    for at, row in enumerate(rows):
        y = _TOP + at * _ROW
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{row.name}</text>')
        parts += _bars(row, summary.waits, (begin, seconds), y, alone)
    parts += _axis(seconds, _TOP + len(rows) * _ROW, ink)
    return "".join([*parts, "</svg>"])


def _bars(row: Row, waits: Waits, axis: tuple[int, float], y: int, alone: bool) -> list[str]:
    """Return the bars of one rank: each column has the kind that takes most of its time.

    ``axis`` is when the time axis begins, in nanoseconds, and how many seconds it is long.
    """
    begin, step = axis[0], axis[1] * 1e9 / _COLUMNS
    columns = [Counter[str]() for _ in range(_COLUMNS)]
    for doing in told_apart(row, waits):
        if doing.end <= begin:
            continue
        first, last = max(doing.start - begin, 0) / step, (doing.end - begin) / step
        for column in range(int(first), min(int(last), _COLUMNS - 1) + 1):
            columns[column][doing.kind] += round(1e6 * (min(last, column + 1) - max(first, column)))
    kinds = [max(KINDS, key=lambda kind: found[kind]) if found else "idle" for found in columns]
    bars, x = [], 0
    for kind, run in groupby(kinds):
        length = len([*run])
        if kind in LOOK:
            colour, own, share = LOOK[kind]
            high = _BAR * share
            bars.append(
                f'<rect x="{_LEFT + x}" y="{y + (_BAR - high) / 2:g}" width="{length}" '
                f'height="{high:g}" fill="{own if alone else colour}"/>'
            )
        x += length
    return bars


def _legend(alone: bool) -> list[str]:
    parts, x = [], _LEFT
    for kind, (colour, own, share) in LOOK.items():
        high = 10 * share
        parts.append(
            f'<rect x="{x}" y="{9 - high / 2:g}" width="14" height="{high:g}" '
            f'fill="{own if alone else colour}"/><text x="{x + 18}" y="13">{kind}</text>'
        )
        x += 30 + 7 * len(kind)
    return parts


def _axis(seconds: float, y: int, ink: str) -> list[str]:
    """Return ticks at round numbers of seconds, or of a unit of which there are few enough."""
    unit, name = next((u for u in _UNITS if seconds < 300 * u[0]), _UNITS[-1])
    least = seconds / unit / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= least)
    parts = []
    for tick in range(int(seconds / unit / step) + 1):
        x = _LEFT + tick * step * unit / seconds * _COLUMNS
        parts.append(
            f'<line x1="{x:g}" x2="{x:g}" y1="{y}" y2="{y + 5}" stroke="{ink}"/>'
            f'<text x="{x:g}" y="{y + 18}" text-anchor="middle">{tick * step:g} {name}</text>'
        )
    return parts

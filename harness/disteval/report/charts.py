"""Pictures in SVG by matplotlib of what ranks did over time."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from disteval.errors import UsageError
from disteval.extras import needs
from disteval.traces.reading import Row, WorldTrace, read_worlds
from disteval.traces.summary import RankTimes, TraceSummary, summarise, told_apart
from disteval.traces.waits import KINDS, Waits

LOOK = {
    "compute": ("#0a57a4", 0.7),
    "data": ("#a8450a", 0.7),
    "metric": ("#1b6a3d", 0.7),
    "collective": ("#8a2476", 0.7),
    "waiting": ("#56606b", 0.18),
    "other": ("#5b4a00", 0.4),
}
"""The colour of each kind of work, and the height of its bars as a share of the row.

Waiting is a thin line, so that it is not told by its colour alone; idle ranks have no bar.
"""

COLUMNS = 600
"""How many parts a rank's time is drawn in, each with the kind that takes most of it."""

MAX_TRACES = 64 << 20
"""The most bytes of traces that are drawn, at about one second a MiB."""

_MOST_ROWS, _MOST_LINES = 32, 300
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "disteval",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


class Picture(NamedTuple):
    """One trace as a page shows it: the title and the SVG of its chart, and what that lacks."""

    name: str
    summary: TraceSummary
    title: str
    svg: str
    left_out: str

    @property
    def source(self) -> str:
        """The chart as the address of an image that loads nothing."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"

    @property
    def ranks(self) -> list[RankTimes]:
        """The ranks that are drawn."""
        return self.summary.ranks[:_MOST_ROWS]


def make_pictures(folders: Sequence[Path]) -> list[Picture]:
    """Draw the longest world of each trace, all over the same seconds.

    Raises:
        UsageError: A folder holds no trace, or it is damaged; or there are too many ranks.
        LibraryMissingError: matplotlib is not installed.
    """
    chosen = []
    for folder in folders:
        longest, count = None, 0
        for world in read_worlds(folder):
            count += 1
            if longest is None or world.end - world.begin > longest.end - longest.begin:
                longest = world
        chosen.append((folder.name, summarise(_checked(folder, longest)), count))
    if sum(min(len(summary.ranks), _MOST_ROWS) for _, summary, _ in chosen) > _MOST_LINES:
        raise UsageError(
            f"the page would have pictures of more than {_MOST_LINES} ranks, which take too long "
            f"to draw; give fewer traces"
        )
    seconds = max((_length(summary) for _, summary, _ in chosen), default=0.0)
    return [
        Picture(name, summary, *draw_ranks(summary, seconds), _left_out(summary, count))
        for name, summary, count in chosen
    ]


def draw_trace(folder: Path, summary: TraceSummary) -> str:
    """Return the picture of one world as the text of an SVG file.

    Raises:
        UsageError: No rank has recorded anything.
        LibraryMissingError: matplotlib is not installed.
    """
    _checked(folder, summary.world)
    return draw_ranks(summary, _length(summary))[1]


def _checked(folder: Path, world: WorldTrace | None) -> WorldTrace:
    if world is not None and any(e.category != "start" for row in world.ranks for e in row.events):
        return world
    raise UsageError(f"{folder} holds a trace without events of a rank; nothing to draw")


def _length(summary: TraceSummary) -> float:
    """Return the seconds from the first event of a rank to the last one's end."""
    end = max(e.end for row in summary.world.ranks for e in row.events if e.category != "start")
    return max((end - _begin(summary)) / 1e9, 1e-6)


def _begin(summary: TraceSummary) -> int:
    """Return the time at which the start of the ranks is over, which is not drawn."""
    events = [event for row in summary.world.ranks for event in row.events]
    running = [event.start for event in events if event.category != "start"]
    return min(running or [event.start for event in events])


def _left_out(summary: TraceSummary, worlds: int) -> str:
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


def draw_ranks(summary: TraceSummary, seconds: float) -> tuple[str, str]:
    """Draw the ranks of a world as rows of bars over so many seconds; return a title and an SVG."""
    with needs("a picture of a trace", "report"):
        from matplotlib import style
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
        from matplotlib.ticker import EngFormatter

    rows = [row for row in summary.world.ranks if row.events][:_MOST_ROWS]
    title = f"what {len(rows)} ranks did in {seconds:.3g} s"
    with style.context(["default", _STYLE]):
        size = (12, 0.7 + 0.3 * len(rows))
        figure = Figure(figsize=size, dpi=72, layout="constrained")
        axes = figure.add_subplot(xlim=(0, seconds))
        for at, row in enumerate(rows):
            for kind, spans in bars(row, summary.waits, _begin(summary), seconds).items():
                colour, height = LOOK[kind]
                axes.broken_barh(spans, (at - height / 2, height), facecolors=colour)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
        patches = [Patch(color=colour, label=kind) for kind, (colour, _) in LOOK.items()]
        figure.legend(handles=patches, loc="outside upper left", ncols=len(patches))
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Title": title})
    return title, text.getvalue()


def bars(
    row: Row, waits: Waits, begin: int, seconds: float
) -> dict[str, list[tuple[float, float]]]:
    """Return the begin and length of each bar of a rank in seconds, by kind.

    Args:
        row: What the rank recorded.
        waits: Who waited for whom.
        begin: When the time axis begins, in nanoseconds.
        seconds: How long the axis is.
    """
    step = seconds * 1e9 / COLUMNS
    columns = [Counter[str]() for _ in range(COLUMNS)]
    for doing in told_apart(row, waits):
        if doing.end <= begin:
            continue
        first, last = max(doing.start - begin, 0) / step, (doing.end - begin) / step
        for column in range(int(first), min(int(last), COLUMNS - 1) + 1):
            columns[column][doing.kind] += round(1e6 * (min(last, column + 1) - max(first, column)))
    kinds = [max(KINDS, key=lambda kind: part[kind]) if part else "idle" for part in columns]
    found: dict[str, list[tuple[float, float]]] = {}
    at = 0
    for kind, run in groupby(kinds):
        length = len([*run])
        if kind in LOOK:
            bar = (at * seconds / COLUMNS, length * seconds / COLUMNS)
            found.setdefault(kind, []).append(bar)
        at += length
    return found

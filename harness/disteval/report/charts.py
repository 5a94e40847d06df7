"""Charts as SVG pictures by matplotlib: speed over world sizes, losses, and what ranks did."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from disteval.errors import UsageError
from disteval.extras import needs
from disteval.text import visible
from disteval.traces.reading import Row, WorldTrace, read_worlds
from disteval.traces.summary import RankTimes, TraceSummary, summarise, told_apart
from disteval.traces.times import KINDS
from disteval.traces.waits import Waits

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
_COLOURS = [colour for colour, _ in LOOK.values()]
_MARKERS, _DASHES = "os^DvPX*", ["-", "--", "-.", ":"]
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "disteval",
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
}


class Chart(NamedTuple):
    """A picture: its title, and an SVG file as text."""

    title: str
    svg: str

    @property
    def source(self) -> str:
        """The picture as the address of an image that loads nothing."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"


class Picture(NamedTuple):
    """One trace as a page shows it, and what its chart leaves out."""

    name: str
    summary: TraceSummary
    chart: Chart
    left_out: str

    @property
    def ranks(self) -> list[RankTimes]:
        """The ranks that are drawn."""
        return self.summary.ranks[:_MOST_ROWS]


def throughput_charts(runs: Iterable[Mapping[str, Any]]) -> list[Chart]:
    """Draw the samples per second over world sizes, where there are several."""
    points = [
        (f"{run.get('framework') or run['task']} over {run['backend']}", run["world_size"],
         run["samples_per_second"])
        for run in runs
    ]  # fmt: skip
    return _line_charts("samples per second", "world size", "samples/s", points)


def loss_charts(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Chart]:
    """Draw the mean loss over epochs of each training of several epochs."""
    charts: list[Chart] = []
    for name, run in runs:
        points = [(r["mode"], r["epoch"], r.get("loss")) for r in run["records"]]
        charts += _line_charts(name, "epoch", "loss", points)
        check_lines(2 * len(charts))
    return charts


def _line_charts(
    title: str, x_label: str, y_label: str, points: Iterable[tuple[str, float, float | None]]
) -> list[Chart]:
    """Draw the points of each line, of which each has the name; nothing where all have one x.

    A y is None where it is not a finite number, which is a gap.
    """
    lines: dict[str, dict[float, float | None]] = {}
    for name, x, y in points:
        lines.setdefault(name, {})[x] = y
    several = len({x for line in lines.values() for x in line}) > 1
    if not several or not any(y for line in lines.values() for y in line.values()):
        return []
    check_lines(len(lines))
    with _figure((3.6, 2.8), title) as (figure, text):
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        for i, (name, line) in enumerate(lines.items()):
            numbers = [(x, math.nan if y is None else y) for x, y in sorted(line.items())]
            axes.plot(
                *zip(*numbers, strict=True), label=f" {visible(name, keep=''):.40}", markersize=4,
                color=_COLOURS[i % len(_COLOURS)], marker=_MARKERS[i % len(_MARKERS)],
                linestyle=_DASHES[i % len(_DASHES)],
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", integer=True)
        figure.legend(loc="outside lower center", ncols=1)
    return [Chart(title, text.getvalue())]


def check_lines(count: int) -> None:
    """Refuse charts with so many lines that they would take more than a minute to draw."""
    if count > _MOST_LINES:
        raise UsageError(
            f"the page would have charts with more than {_MOST_LINES} lines, which take too long "
            f"to draw; give fewer reports"
        )


def make_pictures(folders: Sequence[Path]) -> list[Picture]:
    """Draw the longest world of each trace, all over the same seconds.

    Raises:
        UsageError: A folder holds no trace, or it is damaged.
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
    check_lines(sum(min(len(summary.ranks), _MOST_ROWS) for _, summary, _ in chosen))
    seconds = max((_length(summary) for _, summary, _ in chosen), default=0.0)
    return [
        Picture(name, summary, draw_ranks(summary, seconds), _left_out(summary, count))
        for name, summary, count in chosen
    ]


def draw_trace(folder: Path, summary: TraceSummary) -> str:
    """Return the picture of one world as the text of an SVG file.

    Raises:
        UsageError: No rank has recorded anything.
        LibraryMissingError: matplotlib is not installed.
    """
    _checked(folder, summary.world)
    return draw_ranks(summary, _length(summary)).svg


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


def draw_ranks(summary: TraceSummary, seconds: float) -> Chart:
    """Draw the ranks of a world as rows of bars over this many seconds."""
    rows = [row for row in summary.world.ranks if row.events][:_MOST_ROWS]
    title = f"what {len(rows)} ranks did in {seconds:.3g} s"
    with _figure((12, 0.7 + 0.3 * len(rows)), title) as (figure, text):
        from matplotlib.patches import Patch
        from matplotlib.ticker import EngFormatter

        axes = figure.add_subplot(xlim=(0, seconds))
        for at, row in enumerate(rows):
            for kind, spans in bars(row, summary.waits, _begin(summary), seconds).items():
                colour, height = LOOK[kind]
                axes.broken_barh(spans, (at - height / 2, height), facecolors=colour)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
        patches = [Patch(color=colour, label=kind) for kind, (colour, _) in LOOK.items()]
        figure.legend(handles=patches, loc="outside upper left", ncols=len(patches))
    return Chart(title, text.getvalue())


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


@contextmanager
def _figure(inches: tuple[float, float], title: str) -> Iterator[tuple[Any, StringIO]]:
    """Yield a figure and the text that holds it as SVG afterwards."""
    with needs("a chart", "report"):
        from matplotlib import style
        from matplotlib.figure import Figure
    text = StringIO()
    with style.context(["default", _STYLE]):
        figure = Figure(figsize=inches, dpi=72, layout="constrained")
        yield figure, text
        about = {"Date": None, "Title": visible(title, keep="")}
        figure.savefig(text, format="svg", metadata=about)

"""Charts of benchmarks, of the throughput of evaluations, and of the loss of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from operator import itemgetter
from typing import Any

from disteval.errors import UsageError
from disteval.report.history import Curve, Point
from disteval.report.svg import Chart, Line

_MAX_PARTS = 15_000  # each takes about 4 ms
_PARTS_OF_A_CHART = 20  # which take as long as its axes
_BINARY = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark on one machine, with a curve for each choice of parameters.

    Its charts have the newest values over a parameter, if one is a number, and all values over
    commits, if there are several.
    """

    name: str
    unit: str
    place: str
    curves: list[Curve]
    charts: list[Chart]


def check_charts(charts: Iterable[Chart]) -> None:
    """Refuse charts that would take more than a minute to draw.

    Raises:
        UsageError: There are too many of them, or they have too many lines.
    """
    parts = [len(chart.lines) + len(chart.ticks) for chart in charts]
    if sum(parts) + _PARTS_OF_A_CHART * len(parts) > _MAX_PARTS:
        raise UsageError(
            f"the page would have {len(parts)} charts with {sum(parts)} lines and labels, which "
            f"take too long to draw; give fewer reports, or a folder with fewer benchmarks"
        )


def make_benchmarks(curves: Iterable[Curve]) -> list[Benchmark]:
    """Make charts of the curves of `disteval.report.history.read_history`."""
    found = []
    for (name, machine, environment), group in groupby(
        curves, lambda c: (c.benchmark, c.machine, c.environment)
    ):
        mine = list(group)
        drawn = [curve for curve in mine if curve.measured]
        charts = _over_parameter(drawn) + _over_commits(drawn)
        found.append(Benchmark(name, mine[0].unit, f"{machine}, {environment}", mine, charts))
    return found


def throughput_chart(runs: Sequence[dict[str, Any]]) -> list[Chart]:
    """Make charts of images and of samples per second over world sizes, if there are several."""
    charts = []
    for unit in ("images", "samples"):
        points: dict[str, dict[float, float | None]] = {}
        for run in (run for run in runs if f"{unit}_per_second" in run):
            name = (
                f"{run['task']} over {run['backend']}"
                if "task" in run
                else (f"{run['framework']} over {run['backend']} on {run['device']}")
            )
            points.setdefault(name, {})[float(run["world_size"])] = run[f"{unit}_per_second"]
        lines = [Line(name, sorted(mine.items())) for name, mine in points.items()]
        charts += _drawable(f"{unit} per second", "world_size", f"{unit}/s", lines)
    return charts


def loss_charts(runs: Sequence[tuple[str, dict[str, Any]]]) -> list[Chart]:
    """Make a chart of the mean loss of each epoch for each training of several epochs."""
    charts = []
    for name, run in runs:
        points: dict[str, list[tuple[float, float | None]]] = {"train": [], "val": []}
        for record in run["records"]:
            points[record["mode"]].append((float(record["epoch"]), record.get("loss")))
        lines = [Line(mode, sorted(mine, key=itemgetter(0))) for mode, mine in points.items()]
        epochs = sorted({x for line in lines for x, _ in line.points})
        if len(epochs) > 1 and any(y is not None for line in lines for _, y in line.points):
            ticks = [(x, f"{x:g}") for x in (epochs[0], epochs[-1])]
            charts.append(Chart(name, "epoch", "loss", lines, False, ticks))
    return charts


def shown(parameters: Iterable[tuple[str, str]]) -> str:
    """Describe a choice of parameters."""
    said = (f"{name.replace('_', ' ')} {_plain(value)}" for name, value in parameters)
    return ", ".join(said) or "no parameters"


def day(point: Point) -> str:
    """Return a commit's date in ISO 8601, UTC."""
    return datetime.fromtimestamp(point.date / 1000, tz=timezone.utc).strftime("%Y-%m-%d")


def _plain(value: str) -> str:
    """Return a parameter without the quotes that asv writes around text."""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _over_parameter(curves: list[Curve]) -> list[Chart]:
    """Make charts of the newest values over the parameter with the widest range."""
    ranges = {name: _range(values) for name, values in _choices(curves).items()}
    x_name = max(ranges, key=lambda name: ranges[name], default="")
    if ranges.get(x_name, 1.0) <= 1:
        return []
    charts = []
    for title, lines in _facets(curves, x_name):
        drawn = [
            Line(name, sorted((float(dict(c.parameters)[x_name]), c.points[-1].value) for c in mine
                              if not c.points[-1].skipped))
            for name, mine in lines
        ]  # fmt: skip
        charts += _drawable(title, x_name, curves[0].unit, drawn)
    return charts


def _over_commits(curves: list[Curve]) -> list[Chart]:
    """Make charts of all values over commits, at equal distances in order of date."""
    commits = sorted({(p.date, p.commit): p for c in curves for p in c.points}.items())
    if len(commits) < 2:
        return []
    place = {point.commit: float(i) for i, (_, point) in enumerate(commits)}
    ends = [point for _, point in (commits[0], commits[-1])]
    ticks = [(place[point.commit], f"{day(point)}\n{point.commit[:8]}") for point in ends]
    charts = []
    for title, lines in _facets(curves):
        drawn = [
            Line(
                name, [(place[p.commit], p.value) for c in mine for p in c.points if not p.skipped]
            )
            for name, mine in lines
        ]
        charts.append(Chart(title, "commit", curves[0].unit, drawn, False, ticks))
    return charts


def _facets(
    curves: list[Curve], x_name: str = ""
) -> list[tuple[str, list[tuple[str, list[Curve]]]]]:
    """Return the titles of charts, and for each the names of its lines with their curves.

    The parameter with the most values, apart from that of the x axis, has one line for each value;
    the others have one chart for each choice.
    """
    choices = {name: values for name, values in _choices(curves).items() if name != x_name}
    line_name = max(choices, key=lambda name: len(choices[name]), default="")
    facets: dict[str, dict[str, list[Curve]]] = {}
    for curve in curves:
        rest = [(n, v) for n, v in curve.parameters if n not in (x_name, line_name)]
        title = shown(rest) if rest else curve.benchmark
        value = dict(curve.parameters).get(line_name, curve.benchmark)
        name = shown([(line_name, value)]) if _range({value}) else _plain(value)
        facets.setdefault(title, {}).setdefault(name, []).append(curve)
    return [(title, list(lines.items())) for title, lines in facets.items()]


def _choices(curves: list[Curve]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for curve in curves:
        for name, value in curve.parameters:
            found.setdefault(name, set()).add(value)
    return found


def _range(values: set[str]) -> float:
    """Return the largest value divided by the smallest; 0 if not all are positive numbers."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return 0.0
    usable = all(math.isfinite(number) and number > 0 for number in numbers)
    return max(numbers) / min(numbers) if usable else 0.0


def _drawable(title: str, x_name: str, unit: str, lines: list[Line]) -> list[Chart]:
    """Return one chart with logarithmic axes; an empty list without lines or logarithms."""
    values = [y for line in lines for _, y in line.points if y is not None]
    places = sorted({x for line in lines for x, _ in line.points})
    if len(places) < 2 or not values or not all(0 < y < math.inf for y in values):
        return []
    label = "bytes" if x_name == "bytes" else x_name.replace("_", " ")
    ticks = [(x, _bytes(x) if x_name == "bytes" else f"{x:,g}") for x in places]
    return [Chart(title, label, unit, lines, True, ticks)]


def _bytes(size: float) -> str:
    scale, unit = next(((s, u) for s, u in _BINARY if size >= s), (1, "B"))
    return f"{size / scale:g} {unit}"

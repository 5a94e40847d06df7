"""Charts as SVG that take their colours from the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from disteval.extras import needs
from disteval.text import visible

SERIES = 8
"""The number of colours for lines, which differ in markers and dashes, too."""

_INK, _FAINT = "#000001", "#000002"
_SERIES = [f"#0000a{i}" for i in range(SERIES)]
_COLOURS = {_INK: "currentColor", _FAINT: "var(--line)"} | {
    colour: f"var(--series-{i})" for i, colour in enumerate(_SERIES)
}
_MARKERS = "os^DvPX*"
_DASHES = ["-", "--", "-.", ":"]
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "disteval",
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.grid": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
}
_PAGES_OWN = ("font", "font-family")
_NAME_LENGTH = 40


@dataclass(frozen=True)
class Line:
    """One line of a chart: points (x, y), where y is None for a measurement that failed."""

    name: str
    points: list[tuple[float, float | None]]


@dataclass(frozen=True)
class Chart:
    """Lines over one axis, whose ticks are places and their labels.

    With ``log`` both axes are logarithmic; otherwise the y axis begins at zero.
    """

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    log: bool
    ticks: Sequence[tuple[float, str]]


def draw(chart: Chart, prefix: str) -> str:
    """Draw a chart as an ``svg`` element that a page with a strict content policy can show.

    The chart must have a point with a y. The prefix begins the element's ids, and must be unique
    in the page.
    """
    with needs("a chart", "report"):
        from matplotlib import style
        from matplotlib.figure import Figure
    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(3.2, 2.5), dpi=72, layout="constrained")
        axes = figure.add_subplot(
            xlabel=visible(chart.x_label, keep=""), ylabel=visible(chart.y_label, keep="")
        )
        _plot(axes, chart)
        longest = max(len(_legend(line.name)) for line in chart.lines)
        figure.legend(loc="outside lower center", ncols=max(1, min(3, 36 // (longest + 5))))
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(text.getvalue(), chart.title, prefix)


def _plot(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    for i, line in enumerate(chart.lines):
        look = {"color": _SERIES[i % SERIES], "marker": _MARKERS[i % len(_MARKERS)]}
        there = [(x, y) for x, y in line.points if y is not None]
        axes.plot(
            *zip(*there, strict=True) if there else ([], []), label=_legend(line.name),
            markersize=4, linewidth=1.3, linestyle=_DASHES[i % len(_DASHES)], **look,
        )  # fmt: skip
        failed = [x for x, y in line.points if y is None]
        if failed:
            foot = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(failed, [0] * len(failed), "x", color=look["color"], **foot)
    if chart.log:
        axes.set(xscale="log", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(FixedLocator([x for x, _ in chart.ticks]))
    axes.xaxis.set_ticks([x for x, _ in chart.ticks], [visible(text) for _, text in chart.ticks])
    axes.xaxis.set_minor_locator(FixedLocator([]))


def _legend(name: str) -> str:
    """Shorten a name, and let matplotlib show it: it hides names that begin with an underscore."""
    text = visible(name, keep="")
    short = text if len(text) <= _NAME_LENGTH else text[: _NAME_LENGTH - 1] + "…"
    return f" {short}" if short.startswith("_") else short


def _for_page(text: str, title: str, prefix: str) -> str:
    """Make matplotlib's SVG part of a page: no styles, no links, and ids that are unique there."""
    root = ElementTree.fromstring(text)  # noqa: S314 - matplotlib wrote it just now
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        for child in list(element):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                element.remove(child)
        attributes = list(element.attrib.items())
        element.attrib.clear()
        for name, value in attributes:
            element.attrib.update(_attributes(name.rpartition("}")[2], value, prefix))
    for name in ("width", "height"):
        del root.attrib[name]
    root.attrib.update({"role": "img", "aria-label": visible(title, keep="")})
    return ElementTree.tostring(root, encoding="unicode")


def _attributes(name: str, value: str, prefix: str) -> dict[str, str]:
    """Convert one attribute; a style becomes attributes of the same meaning."""
    if name == "style":
        declared = [part.partition(":") for part in value.split(";")]
        pairs = {key.strip(): what.strip() for key, _, what in declared}
        return {key: _value(what, prefix) for key, what in pairs.items() if key not in _PAGES_OWN}
    if name == "id":
        return {name: f"{prefix}-{value}"}
    if name == "href":
        return {name: f"#{prefix}-{value.removeprefix('#')}"}
    return {name: _value(value, prefix)}


def _value(value: str, prefix: str) -> str:
    return _COLOURS.get(value, value.replace("url(#", f"url(#{prefix}-"))

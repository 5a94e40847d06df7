"""A badge: a verdict as a small picture whose text needs no colour."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import east_asian_width
from xml.etree import ElementTree

from disteval.errors import UsageError
from disteval.judging.report import OUTCOMES, SIGNS, Verdict
from disteval.report.model import Column
from disteval.text import visible

_COLOURS = {"passed": "#1b6a3d", "failed": "#a8201a", "error": "#7a4b00"}
_GREY = "#3a4149"
_HEIGHT, _CHARACTER, _MARGIN = 20, 6.6, 7  # pixels, for letters of 11 pixels
_LONGEST, _LONGEST_TITLE = 60, 600  # characters


def make_badge(columns: Sequence[Column]) -> str:
    """Return the badge of the newest version of a backend, as the text of an SVG file.

    It shows the backend's name and version and the verdict in a few words. Only a conformant
    backend's badge is green and has a tick. The whole sentence is the picture's title.

    Raises:
        UsageError: There is no check, or there are checks of several backends.
    """
    targets = list(dict.fromkeys(str(column.run["target"]) for column in columns))
    if len(targets) != 1:
        found = f"are of {len(targets)} backends" if targets else "are of no check"
        raise UsageError(
            f"a badge is of one backend, and the files {found}; give files of one backend that "
            f"disteval check has written with --json"
        )
    newest = columns[0]  # the columns of one backend begin with its newest version
    run, verdict = newest.run, newest.verdict
    name = " ".join(filter(None, [targets[0], newest.version]))
    title = f"{name} {verdict.covers}. Judged by disteval {run['version']}, {run['created']}."
    return draw_badge(name, verdict, title)


def draw_badge(name: str, verdict: Verdict, title: str) -> str:
    """Return the badge of a verdict, as the text of an SVG file.

    Args:
        name: What was judged.
        verdict: The verdict, of which the badge has the short form.
        title: The whole sentence.
    """
    outcome = OUTCOMES[verdict.word]
    parts = [
        (f"disteval: {name}", _GREY),
        (f"{SIGNS[outcome].glyph} {verdict.short}", _COLOURS[outcome]),
    ]
    return _draw([(_shortened(text, _LONGEST), colour) for text, colour in parts], title)


def _draw(parts: Sequence[tuple[str, str]], title: str) -> str:
    """Draw texts side by side, each on a rectangle of its colour."""
    title = _shortened(title, _LONGEST_TITLE)
    widths = [round(_CHARACTER * _columns(text)) for text, _ in parts]
    total = sum(widths) + 2 * _MARGIN * len(parts)
    size = {"width": str(total), "height": str(_HEIGHT), "viewBox": f"0 0 {total} {_HEIGHT}"}
    svg = ElementTree.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": title} | size
    )
    ElementTree.SubElement(svg, "title").text = title
    left = 0
    for (text, colour), width in zip(parts, widths, strict=True):
        box = {"x": str(left), "width": str(width + 2 * _MARGIN), "height": str(_HEIGHT)}
        ElementTree.SubElement(svg, "rect", {**box, "fill": colour})
        where = {"x": str(left + _MARGIN), "y": "14", "textLength": str(width)}
        look = {"fill": "#ffffff", "font-family": "Verdana,DejaVu Sans,sans-serif"}
        # The text has this width in any font.
        more = {"font-size": "11", "lengthAdjust": "spacingAndGlyphs"}
        ElementTree.SubElement(svg, "text", where | look | more).text = text
        left += width + 2 * _MARGIN
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _shortened(text: str, most: int) -> str:
    shown = visible(text, keep="")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _columns(text: str) -> int:
    """Return the width of a text in letters; those of East Asia are two wide."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)

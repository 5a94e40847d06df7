"""A badge: a verdict as a small picture whose text needs no colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from unicodedata import east_asian_width
from xml.sax.saxutils import escape, quoteattr

from disteval.errors import UsageError
from disteval.judging.report import OUTCOMES, SIGNS, Verdict
from disteval.text import visible

if TYPE_CHECKING:
    from disteval.report.model import Column

_COLOURS = {"passed": "#1b6a3d", "failed": "#a8201a", "error": "#7a4b00"}
_GREY = "#3a4149"
_CHARACTER, _MARGIN = 6.6, 7  # pixels, for letters of 11 pixels
# The text has its width in any font.
_BOX = (
    '<rect x="{0}" width="{1}" height="20" fill="{2}"/><text x="{3}" y="14" textLength="{4}" '
    'lengthAdjust="spacingAndGlyphs" fill="#ffffff" font-family="Verdana,DejaVu Sans,sans-serif" '
    'font-size="11">{5}</text>'
)
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
    outcome, title = OUTCOMES[verdict.word], _shortened(title, _LONGEST_TITLE)
    parts = [
        (f"disteval: {name}", _GREY),
        (f"{SIGNS[outcome].glyph} {verdict.short}", _COLOURS[outcome]),
    ]
    boxes, left = [], 0
    for part, colour in parts:
        text = _shortened(part, _LONGEST)
        # Letters of East Asia are two wide.
        letters = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)
        inner = round(_CHARACTER * letters)
        width = inner + 2 * _MARGIN
        boxes.append(_BOX.format(left, width, colour, left + _MARGIN, inner, escape(text)))
        left += width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label={quoteattr(title)} '
        f'width="{left}" height="20" viewBox="0 0 {left} 20"><title>{escape(title)}</title>'
        f"{''.join(boxes)}</svg>\n"
    )


def _shortened(text: str, most: int) -> str:
    shown = visible(text, keep="")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"

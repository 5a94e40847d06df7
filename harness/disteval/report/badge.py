"""A badge: the verdict of one check as a small picture whose text needs no colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import east_asian_width

from disteval.errors import UsageError
from disteval.judging.report import OUTCOMES, SIGNS
from disteval.report.model import Column
from disteval.report.page import environment
from disteval.text import visible

_COLOURS = {"conformant": "#1b6a3d", "broken": "#a8201a", "incomplete": "#7a4b00"}
_GREY = "#3a4149"
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
    sign = SIGNS[OUTCOMES[verdict.word]].glyph
    title = f"{name} {verdict.covers}. Judged by disteval {run['version']}, {run['created']}."
    parts: list[dict[str, Any]] = []
    width = 0
    texts = {f"disteval: {name}": _GREY, f"{sign} {verdict.short}": _COLOURS[verdict.word]}
    for text, colour in texts.items():
        shown = _shortened(text, _LONGEST)
        # The letters of East Asia are two wide.
        letters = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in shown)
        wide = round(6.6 * letters)
        parts.append({"text": shown, "colour": colour, "left": width, "width": wide})
        width += wide + 14
    template = environment("--badge").get_template("badge.svg")
    return template.render(title=_shortened(title, _LONGEST_TITLE), parts=parts, width=width)


def _shortened(text: str, most: int) -> str:
    shown = visible(text, keep="")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"

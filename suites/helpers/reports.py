"""Reports, and what pages and badges make of them, without files."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from disteval.report import files, verdict
from disteval.report.badge import make_badge
from disteval.report.model import make_columns, make_rows
from disteval.report.page import render
from disteval.report.pictures import LOOK, make_pictures
from disteval.report.versions import make_histories

Run = dict[str, Any]
File = tuple[str, Run]


class Page(HTMLParser):
    """The elements of a page that a browser would see, with attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def why_no_run(found: object) -> str:
    """Return why a value is no report, beginning with the place in it; empty if it is one."""
    return files.why_no_run(found)


def judge(results: list[Any], contract: dict[str, str], single_rank: str = "") -> verdict.Verdict:
    """Return the verdict over some results of a check."""
    return verdict.judge(results, contract, single_rank)


def page(*runs: File, traces: Sequence[Path] = ()) -> str:
    """Return the page of these reports, each with the name of its file, and of folders of traces.

    Other than by the command, the names may be such as no file can have.
    """
    return render(runs, [], make_pictures(traces))


def badge(*runs: File) -> str:
    """Return the badge of these reports."""
    return make_badge(make_columns(runs))


def labels(*runs: File) -> list[str]:
    """Return how the checks are told apart, in the order in which they are shown."""
    return [column.label for column in make_columns(runs)]


def outcomes(*runs: File) -> dict[str, list[str | None]]:
    """Return the outcomes of each rule, by check and world size; None where it was not tried."""
    rows = make_rows(make_columns(runs))
    return {row.id: [c.result and c.result["outcome"] for c in row.cells] for row in rows}


def history(*runs: File) -> tuple[dict[str, list[str]], list[tuple[str, list[str]]]]:
    """Return the words for each rule by version, and the changes that are told of each version."""
    columns = make_columns(runs)
    [found] = make_histories(columns, make_rows(columns)) or [None]
    if found is None:
        return {}, []
    words = {row.id: [state.word for state in states] for row, states in found.rows}
    return words, [(column.version, changes) for column, changes in found.changes]


def bars(*traces: Path) -> list[list[dict[str, float]]]:
    """Return the width of the bars of each rank, by what they stand for, of each trace."""
    return [_bars(each.svg) for each in make_pictures(traces)]


def _bars(svg: str) -> list[dict[str, float]]:
    kinds = {colour: kind for kind, (colour, _, _) in LOOK.items()}
    rows: dict[float, dict[str, float]] = {}
    for rect in ElementTree.fromstring(svg).iter("rect"):
        kind = kinds.get(rect.get("fill", ""))
        middle = float(rect.get("y", 0)) + float(rect.get("height", 0)) / 2
        if kind is not None and middle > 20:  # below the legend
            row = rows.setdefault(middle, {})
            row[kind] = row.get(kind, 0.0) + float(rect.get("width", 0))
    return [row for _, row in sorted(rows.items())]

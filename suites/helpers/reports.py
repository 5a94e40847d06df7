"""Reports, and what pages and badges make of them, without files."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from disteval.conformance import verdict
from disteval.judging.report import Verdict
from disteval.report import charts, files
from disteval.report.badge import make_badge
from disteval.report.model import make_columns, make_rows
from disteval.report.page import render
from disteval.traces.reading import read_worlds
from disteval.traces.summary import summarise

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


def judge(results: list[Any], contract: dict[str, str], single_rank: str = "") -> Verdict:
    """Return the verdict over some results of a check."""
    return verdict.judge(results, contract, single_rank)


def page(*runs: File, traces: Sequence[Path] = ()) -> str:
    """Return the page of these reports, each with the name of its file, and of folders of traces.

    Other than by the command, the names may be such as no file can have.
    """
    return render(runs, charts.make_pictures(traces))


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


def bars(trace: Path) -> list[dict[str, float]]:
    """Return how long the bars of each rank are, in seconds, by what they stand for."""
    [world] = read_worlds(trace)
    summary = summarise(world)
    seconds = max(event.end for row in world.ranks for event in row.events) / 1e9
    return [
        {kind: sum(length for _, length in spans) for kind, spans in drawn.items()}
        for drawn in (charts.bars(row, summary.waits, 0, seconds) for row in world.ranks)
    ]

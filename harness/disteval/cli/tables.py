"""Tables, findings and verdicts on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from disteval.judging.report import OUTCOMES, SIGNS, Finding, Verdict
from disteval.report.evaluations import conduct, results
from disteval.text import visible

_LEAST_WIDTH = 80


def table_console() -> Console:
    """Return a console for tables: on a narrow terminal lines go on in the next one, uncut."""
    return Console(width=max(_LEAST_WIDTH, Console().width))


def print_line(console: Console, line: str, style: str = "") -> None:
    """Print a line of any text; commands and paths in it stay in one piece."""
    console.print(escape(visible(line)), style=style, soft_wrap=True, highlight=False)


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print findings."""
    for finding in findings:
        first, *lines = finding.lines()
        print_line(console, f"\n{SIGNS['failed'].glyph} {first}", "bold red")
        for line in lines:
            print_line(console, str(line))


def print_verdict(console: Console, target: str, verdict: Verdict) -> None:
    """Print the sentence of a verdict."""
    colour = {"passed": "green", "failed": "red"}.get(OUTCOMES[verdict.word], "yellow")
    print_line(console, f"\n{target} {verdict.covers}", f"bold {colour}")


def print_evaluation(report: dict[str, Any]) -> None:
    """Print the report of an evaluation as a table."""
    columns = [Column(overflow="fold") for _ in range(2)]  # long paths stay whole
    table = Table(*columns, title=escape(visible(report["task"])), show_header=False)
    for fact in [*results([report]), *conduct([report])]:
        table.add_row(escape(visible(fact.name)), escape(visible(fact.texts[0])))
    table_console().print(table)

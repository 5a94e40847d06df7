"""The table that ``disteval eval`` prints."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from disteval.cli.terminal import table_console
from disteval.report.evaluations import conduct, results, title_of
from disteval.text import visible


def print_evaluation(report: dict[str, Any]) -> None:
    """Print the report of an evaluation as a table."""
    columns = [Column(overflow="fold") for _ in range(2)]  # long paths stay whole
    table = Table(*columns, title=escape(visible(title_of(report))), show_header=False)
    for fact in [*results([report]), *conduct([report])]:
        table.add_row(escape(visible(fact.name)), escape(visible(fact.texts[0])))
    table_console().print(table)

"""The table that ``disteval eval`` prints."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from disteval.cli.terminal import table_console
from disteval.report.values import coverage, doubts, rows
from disteval.text import visible


def print_evaluation(report: dict[str, Any]) -> None:
    """Print the report of an evaluation as a table."""
    named = report.get("task")
    title = named or f"ResNet-18 on {report['dataset']}"
    columns = [Column(overflow="fold") for _ in range(2)]  # long paths stay whole
    table = Table(*columns, title=escape(visible(title)), show_header=False)
    if named:
        for name, value in rows(report["metrics"]):
            table.add_row(escape(visible(name)), escape(visible(value)))
    else:
        for name, value in report["accuracy"].items():
            correct = report["correct"][name]
            table.add_row(f"{name} accuracy", f"{value:.4f}  ({correct} of {report['evaluated']})")
    table.add_row("samples", f"{report['evaluated']} of {report['size']}")
    if report["stored"]:
        found = f"{report['stored']} of {report['evaluated']}, begun {report['stored_since']}"
        table.add_row("of an earlier run", found)
    table.add_row("coverage", escape(visible(coverage(report))))
    if report.get("digest"):
        table.add_row("digest", escape(visible(report["digest"])))
    if doubts(report):
        table.add_row("model", doubts(report))
    table.add_row("duplicates dropped", str(report["padded"]))
    if named:
        table.add_row("samples/s", f"{report['samples_per_second']:.0f}")
    else:
        table.add_row("images/s", f"{report['images_per_second']:.0f}")
    table.add_row("ranks", str(report["world_size"]))
    table.add_row("backend", escape(report["backend"]))
    if not named:
        table.add_row("device", f"{report['device']} ({report['framework']})")
    if "leases" in report:
        found = report["leases"]
        table.add_row("leases", str(found["committed"]))
        table.add_row("batches repeated", f"{found['repeated']} of {found['batches']}")
        table.add_row("ranks lost", str(len(found["lost"])))
    if "predictions" in report:
        table.add_row("predictions", escape(visible(report["predictions"])))
    table_console().print(table)

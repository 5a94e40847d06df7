"""``disteval trace``: what a trace shows of each rank, and who waited for whom."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table

from disteval.arguments import check_output_file, unwritable
from disteval.cli.options import COUNT, JSON, RESULTS, Command, OutputPath, option
from disteval.cli.tables import print_line, table_console
from disteval.cli.terminal import write_reports
from disteval.errors import UsageError
from disteval.judging.report import header
from disteval.report.charts import draw_trace
from disteval.report.files import write_file
from disteval.traces.folder import MERGED, NAME
from disteval.traces.merging import write_merged
from disteval.traces.reading import read_worlds
from disteval.traces.summary import TraceSummary, summarise
from disteval.traces.waits import KINDS

_SHOWN_WHOLE = 3  # worlds; of more there is a line each
_MOST_SHOWN = 10


@click.command("trace", cls=Command)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@option("--world", type=COUNT, metavar="N", help="Show this world alone.")
@option(
    "--merged", type=OutputPath(), metavar="FILE", show_default="trace.json in DIR",
    help="The file with all rows, for Perfetto.", heading=RESULTS,
)  # fmt: skip
@option(
    "--svg", type=OutputPath(), metavar="FILE", help="Draw the ranks, and write the picture here.",
    heading=RESULTS,
)  # fmt: skip
@JSON
def trace_command(
    folder: Path, merged: Path | None, world: int | None, svg: Path | None, json_path: Path | None
) -> None:
    r"""Show where the time went in a trace that --trace has written to DIR.

    It prints the share of time of each rank in data, compute, metrics, collectives and waiting, who
    waited for whom and how long, and the slowest rank with the reason. It writes all rows to one
    file, which https://ui.perfetto.dev and chrome://tracing open. The exit status is 2 if there is
    no trace in the folder, or files of several runs.

    \b
    disteval eval my_task:task --trace run
    disteval trace run
    """
    path = merged or folder / MERGED
    worlds = read_worlds(folder)
    for name, file in (("--merged", path), ("--svg", svg), ("--json", json_path)):
        if file is not None and NAME.fullmatch(file.name) and file.parent.samefile(folder):
            raise UsageError(f"{name} {file} would replace a file of the trace; give another name")
    check_output_file("--merged", path)
    summaries = [summarise(one) for one in worlds if world in (None, one.number)]
    if not summaries:
        raise UsageError(f"the trace in {folder} has no world {world}; leave --world out")
    try:
        write_merged(path, [(summary.world, summary.waits) for summary in summaries])
    except OSError as error:
        raise unwritable("--merged", path, error) from error
    if svg is not None:
        chosen = max(summaries, key=lambda summary: summary.world.end - summary.world.begin)
        write_file("--svg", svg, draw_trace(folder, chosen))
    report = {
        **header("trace"),
        "folder": str(folder),
        "worlds": [summary.to_json() for summary in summaries],
    }
    status = write_reports(report, "", json_path)
    _show(table_console(), summaries)
    click.echo(f"{path}: open it in https://ui.perfetto.dev or chrome://tracing")
    sys.exit(status)


def _show(console: Console, summaries: list[TraceSummary]) -> None:
    for summary in summaries:
        world = summary.world
        seconds = (world.end - world.begin) / 1e9
        print_line(console, f"world {world.number} {world.title}: {seconds:.3g} s")
        if len(summaries) <= _SHOWN_WHOLE:
            columns = [Column(name, justify="right") for name in ("seconds", *KINDS)]
            table = Table(Column("", no_wrap=True), *columns, padding=(0, 0), show_edge=False)
            for each in summary.ranks:
                total = each.total or 1.0
                shares = [f"{100 * each.seconds[kind] / total:.1f}%" for kind in KINDS]
                table.add_row(each.row.name, f"{each.total:.3g}", *shares)
            console.print(table)
            pairs = sorted(summary.waits.by_pair().items(), key=lambda pair: -pair[1][0])
            for (rank, other), (waited, count) in pairs[:_MOST_SHOWN]:
                times = f"in {count} collective{'s' * (count > 1)}"
                waits = f"rank {rank} waited {waited / 1e9:.3g} s for rank {other}"
                print_line(console, f"{waits}, {times}")
            if len(pairs) > _MOST_SHOWN:
                print_line(console, f"… and {len(pairs) - _MOST_SHOWN} more pairs")
        if summary.slowest is not None:
            print_line(console, f"slowest: {summary.slowest}")
        for line in _remarks(summary):
            print_line(console, line)


def _remarks(summary: TraceSummary) -> Iterator[str]:
    """Yield what is wrong with the run, and what the trace does not show of it."""
    for what, ranks in summary.failures:
        yield f"failed: {what}"
        yield from (f"  {rank}: {doing}" for rank, doing in ranks.items())
    for row in summary.world.rows:
        if not row.is_whole:
            yield f"{row.name}: its file is truncated; what it did at the end is not in it"
        if row.dropped:
            yield f"{row.name}: {row.dropped} events were left out, after {len(row.events)}"
        if row.header.get("offset_from") == "wall clocks":
            yield f"{row.name}: its clock was compared by the wall clocks of the hosts alone"
    if missing := summary.world.missing:
        more = f" and {len(missing) - _MOST_SHOWN} more" if len(missing) > _MOST_SHOWN else ""
        shown = ", ".join(map(str, missing[:_MOST_SHOWN]))
        yield f"there is no file of rank{'s' * (len(missing) > 1)} {shown}{more}"

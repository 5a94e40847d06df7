"""``disteval report``: checks, evaluations, training and benchmarks as one page."""

from __future__ import annotations

from pathlib import Path

import click

from disteval.cli.options import html_option
from disteval.report.charts import make_benchmarks
from disteval.report.files import read_run
from disteval.report.history import read_history
from disteval.report.page import write_page
from disteval.report.pictures import make_pictures

ASV_RESULTS = Path(".asv/results")


@click.command("report")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN.json|DIR]...")
@click.option(
    "--history", type=click.Path(path_type=Path), metavar="DIR",
    help=f"The folder of asv's results.  [default: {ASV_RESULTS}, where no RUN.json is given]",
)  # fmt: skip
@html_option(required=True)
def report_command(runs: tuple[Path, ...], history: Path | None, html_path: Path) -> None:
    r"""Write one page of several reports and benchmarks.

    RUN.json is a report that disteval check, audit, eval or fit wrote with --json, and DIR a folder
    that one of them wrote with --trace; traces are drawn side by side. The page is one file that
    needs no network. The exit status is 0 if the page was written, whatever the verdicts in it are,
    and 2 if there is nothing to show or a file is not such a report.

    \b
    disteval report torch.json mpi.json --html report.html
    disteval report eval-1.json eval-2.json eval-4.json --html throughput.html
    disteval report before after --html traces.html
    disteval report --history .asv/results --html benchmarks.html
    """
    found = [(path.name, read_run(path)) for path in runs if not path.is_dir()]
    pictures = make_pictures([path for path in runs if path.is_dir()])
    if history is None and not runs:
        history = ASV_RESULTS
    benchmarks = make_benchmarks(read_history(history)) if history else []
    write_page(html_path, found, benchmarks, pictures)
    drawn = f", traces: {len(pictures)}" if pictures else ""
    click.echo(f"{html_path}: runs: {len(found)}, benchmarks: {len(benchmarks)}{drawn}")

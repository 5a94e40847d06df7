"""``disteval report``: checks, evaluations, training and benchmarks as one page."""

from __future__ import annotations

from pathlib import Path

import click

from disteval.cli.options import html_option
from disteval.report.charts import make_benchmarks
from disteval.report.files import read_run
from disteval.report.history import read_history
from disteval.report.page import write_page

ASV_RESULTS = Path(".asv/results")


@click.command("report")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN.json]...")
@click.option(
    "--history", type=click.Path(path_type=Path), metavar="DIR",
    help=f"The folder of asv's results.  [default: {ASV_RESULTS}, where no RUN.json is given]",
)  # fmt: skip
@html_option(required=True)
def report_command(runs: tuple[Path, ...], history: Path | None, html_path: Path) -> None:
    r"""Write one page of several reports and benchmarks.

    RUN.json is a report that disteval check, audit, eval or fit wrote with --json. The page is one
    file that needs no network. The exit status is 0 if the page was written, whatever the verdicts
    in it are, and 2 if there is nothing to show or a file is not such a report.

    \b
    disteval report torch.json mpi.json --html report.html
    disteval report eval-1.json eval-2.json eval-4.json --html throughput.html
    disteval report --history .asv/results --html benchmarks.html
    """
    found = [(path.name, read_run(path)) for path in runs]
    if history is None and not runs:
        history = ASV_RESULTS
    benchmarks = make_benchmarks(read_history(history)) if history else []
    write_page(html_path, found, benchmarks)
    click.echo(f"{html_path}: runs: {len(found)}, benchmarks: {len(benchmarks)}")

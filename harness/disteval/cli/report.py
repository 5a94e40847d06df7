"""``disteval report``: checks, evaluations, training and benchmarks as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from disteval.cli.options import OutputPath, html_option
from disteval.errors import UsageError
from disteval.report.badge import make_badge
from disteval.report.charts import make_benchmarks
from disteval.report.files import read_run, write_file
from disteval.report.history import read_history
from disteval.report.model import make_columns
from disteval.report.page import write_page
from disteval.report.pictures import make_pictures

ASV_RESULTS = Path(".asv/results")


@click.command("report")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN.json|DIR]...")
@click.option(
    "--history", type=click.Path(path_type=Path), metavar="DIR",
    help=f"The folder of asv's results.  [default: {ASV_RESULTS}, where no RUN.json is given]",
)  # fmt: skip
@html_option()
@click.option(
    "--badge", type=OutputPath(), metavar="FILE",
    help="Write the verdict of a backend's newest version to this file, as a badge in SVG.",
)  # fmt: skip
def report_command(
    runs: tuple[Path, ...], history: Path | None, html_path: Path | None, badge: Path | None
) -> None:
    r"""Write one page of several reports and benchmarks, or a badge.

    RUN.json is a report that disteval check, audit, eval or fit wrote with --json, and DIR a folder
    that one of them wrote with --trace; traces are drawn side by side. The page is one file that
    needs no network. Several checks of one backend are shown as its conformance over time, by
    version. The exit status is 0 if the files were written, whatever the verdicts in them
    are, and 2 if there is nothing to show or a file is not such a report.

    \b
    disteval report torch.json mpi.json --html report.html
    disteval report eval-1.json eval-2.json eval-4.json --html throughput.html
    disteval report before after --html traces.html
    disteval report 0.1.0.json 0.2.0.json --html versions.html --badge badge.svg
    disteval report --history .asv/results --html benchmarks.html
    """
    if html_path is None and badge is None:
        raise UsageError("there is nothing to write; give --html FILE, --badge FILE or both")
    for option, path in (("--html", html_path), ("--badge", badge)):
        if path is not None and path.is_file() and any(_is_same(path, run) for run in runs):
            raise UsageError(f"{option} {path} would replace that report; give another file")
    found = [(path.name, read_run(path)) for path in runs if not path.is_dir()]
    if badge is not None:
        checks = [(name, run) for name, run in found if run["kind"] == "check"]
        write_file("--badge", badge, make_badge(make_columns(checks)))
        click.echo(f"{badge}: a badge")
    if html_path is not None:
        _write_page(runs, found, history, html_path)


def _is_same(path: Path, run: Path) -> bool:
    return run.exists() and path.samefile(run)


def _write_page(
    paths: tuple[Path, ...],
    found: list[tuple[str, dict[str, Any]]],
    history: Path | None,
    html_path: Path,
) -> None:
    pictures = make_pictures([path for path in paths if path.is_dir()])
    if history is None and not paths:
        history = ASV_RESULTS
    benchmarks = make_benchmarks(read_history(history)) if history else []
    write_page(html_path, found, benchmarks, pictures)
    drawn = f", traces: {len(pictures)}" if pictures else ""
    click.echo(f"{html_path}: runs: {len(found)}, benchmarks: {len(benchmarks)}{drawn}")

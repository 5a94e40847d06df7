"""``disteval report``: checks, audits, evaluations, training and traces as one page."""

from __future__ import annotations

from pathlib import Path

import click

from disteval.cli.options import HTML, RESULTS, Command, OutputPath, option
from disteval.errors import UsageError
from disteval.report.badge import make_badge
from disteval.report.charts import MAX_TRACES, make_pictures
from disteval.report.files import MAX_BYTES, read_run, write_file
from disteval.report.model import make_columns
from disteval.report.page import write_page


@click.command("report", cls=Command)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN.json|DIR]...")
@HTML
@option(
    "--badge", type=OutputPath(), metavar="FILE", heading=RESULTS,
    help="Write a badge in SVG: the verdict of a backend's newest version.",
)  # fmt: skip
def report_command(runs: tuple[Path, ...], html_path: Path | None, badge: Path | None) -> None:
    r"""Write one page of several reports and traces, or a badge.

    RUN.json is a report that disteval check, audit, eval or fit wrote with --json, and DIR a folder
    that one of them wrote with --trace; all of one kind are shown side by side. The page is one
    file that needs no network. The exit status is 0 if the files were written, whatever the
    verdicts in them are, and 2 if there is nothing to show or a file is not such a report.

    \b
    disteval report torch.json mpi.json --html report.html
    disteval report eval-1.json eval-2.json eval-4.json --html evaluations.html
    disteval report before after --html traces.html
    disteval report 0.1.0.json 0.2.0.json --html versions.html --badge badge.svg
    """
    if not runs:
        raise UsageError("there is nothing to show; give files of --json, or folders of --trace")
    if html_path is None and badge is None:
        raise UsageError("there is nothing to write; give --html FILE, --badge FILE or both")
    for name, path in (("--html", html_path), ("--badge", badge)):
        there = [run for run in runs if run.exists()]
        if path is not None and path.is_file() and any(map(path.samefile, there)):
            raise UsageError(f"{name} {path} would replace that report; give another file")
    files = [path for path in runs if not path.is_dir()]
    folders = [path for path in runs if path.is_dir()]
    traced = (path for folder in folders for path in folder.iterdir())
    for what, most, some in (("reports", MAX_BYTES, files), ("traces", MAX_TRACES, traced)):
        if (size := sum(path.stat().st_size for path in some if path.is_file())) > most:
            raise UsageError(
                f"the {what} have {size} bytes, and a page is made of at most {most}, so that it "
                f"takes no more than a minute; give fewer or smaller ones"
            )
    found = [(path.name, read_run(path)) for path in files]
    if badge is not None:
        checks = [(name, run) for name, run in found if run["kind"] == "check"]
        write_file("--badge", badge, make_badge(make_columns(checks)))
        click.echo(f"{badge}: a badge")
    if html_path is not None:
        pictures = make_pictures(folders)
        write_page(html_path, found, pictures)
        drawn = f", traces: {len(pictures)}" if pictures else ""
        click.echo(f"{html_path}: runs: {len(found)}{drawn}")

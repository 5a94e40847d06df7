"""``disteval report`` draws what ``--json`` wrote, and refuses what would take too long."""

import json
from pathlib import Path
from typing import Any

import pytest

from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.helpers.reports import Page
from suites.report.runs import EVALUATION, FIT

pytestmark = needs("jinja2", "matplotlib")


def report(folder: Path, *runs: dict[str, Any]) -> tuple[int, str, Path]:
    """Return the exit status, what is said, and the page of these reports."""
    files = [folder / f"{i}.json" for i in range(len(runs))]
    for file, run in zip(files, runs, strict=True):
        file.write_text(json.dumps(run))
    done = invoke("report", *map(str, files), f"--html={folder / 'page.html'}")
    return done.exit_code, done.output + done.stderr, folder / "page.html"


@pytest.mark.parametrize("runs", [[FIT], [EVALUATION, EVALUATION | {"world_size": 1}]])
def test_losses_and_speeds_are_charts(tmp_path: Path, runs: list[dict[str, Any]]) -> None:
    status, said, page = report(tmp_path, *runs)
    assert status == 0, said
    assert Page(page.read_text()).tags.count("img") == 1


def test_more_lines_than_can_be_drawn_in_a_minute_are_refused(tmp_path: Path) -> None:
    runs = [EVALUATION | {"backend": f"b{i}", "world_size": i % 2 + 1} for i in range(301)]
    status, said, page = report(tmp_path, *runs)
    assert (status, "300" in said, page.exists()) == (2, True, False)


def test_more_reports_than_a_page_is_made_of_in_a_minute_are_refused(tmp_path: Path) -> None:
    long = EVALUATION | {"dataset": "x" * (1 << 20)}
    status, said, page = report(tmp_path, *[long] * 17)
    assert (status, str(16 << 20) in said, page.exists()) == (2, True, False)

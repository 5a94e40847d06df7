"""``disteval report`` draws what ``--json`` wrote, and refuses what would take too long."""

import json
from pathlib import Path
from typing import Any

import pytest

from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.report.runs import EVALUATION, TASK

pytestmark = needs("jinja2", "matplotlib")


def report(folder: Path, *runs: dict[str, Any]) -> tuple[int, str, Path]:
    """Return the exit status, what is said, and the page of these reports."""
    files = [folder / f"{i}.json" for i in range(len(runs))]
    for file, run in zip(files, runs, strict=True):
        file.write_text(json.dumps(run))
    done = invoke("report", *map(str, files), f"--html={folder / 'page.html'}")
    return done.exit_code, done.output + done.stderr, folder / "page.html"


def test_more_than_a_page_is_made_of_in_a_minute_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = EVALUATION | {"task": "x" * (1 << 20)}
    status, said, page = report(tmp_path, *[long] * 17)
    assert (status, str(16 << 20) in said, page.exists()) == (2, True, False)
    two = [TASK | {"metrics": {f"m{i}": i for i in range(50_001)}}] * 2
    status, said, page = report(tmp_path, *two)
    assert (status, "50001 rows" in said, page.exists()) == (2, True, False)
    monkeypatch.setattr("disteval.report.page.MAX_SHOWN", 1_000)
    confusion = {"metrics": {"confusion": [[0] * 40] * 40}}
    status, said, page = report(tmp_path, TASK | confusion)
    assert (status, "1000 values" in said, page.exists()) == (2, True, False)


def test_traces_of_more_bytes_than_are_drawn_in_a_minute_are_refused(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "world-1-rank-00000.jsonl").open("wb") as file:
            file.truncate(33 << 20)  # sparse
    folders = [str(tmp_path / name) for name in ("before", "after")]
    done = invoke("report", *folders, f"--html={tmp_path / 'page.html'}")
    assert (done.exit_code, f"at most {64 << 20}" in done.stderr) == (2, True), done.stderr

"""``disteval report`` draws what asv wrote, names what is not there, and trusts none of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import UsageError
from harness.history import read_history

NAN = float("nan")
MAY, JUNE = 1_777_636_800_000, 1_780_315_200_000  # the first of each, at noon, in 2026
OLD, NEW = "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "fedcba98"
COLUMNS = [
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b",
    "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
]  # fmt: skip
BACKENDS = [["'threads'", "'jax'"], ["64", "4096"]]
LATENCY, IMPORT = "collectives.CollectiveLatency.track_median", "startup.Startup.track_import"


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | {"version": 2}))


def described(name: str, unit: str, names: list[str], params: list[list[str]]) -> dict[str, Any]:
    return {
        "code": "def track(): ...", "name": name, "param_names": names, "params": params,
        "timeout": 60.0, "type": "track", "unit": unit, "version": "4f2a",
    }  # fmt: skip


def results(commit: str, date: int, rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "commit_hash": commit, "env_name": "virtualenv-py3.11-torch", "date": date,
        "params": {"machine": "bench", "python": "3.11"}, "python": "3.11",
        "requirements": {"torch": "2.13.0"}, "env_vars": {}, "result_columns": COLUMNS,
        "results": rows, "durations": {},
    }  # fmt: skip


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two commits on one machine: one benchmark with parameters, and one without."""
    folder = tmp_path / "results"
    benchmarks = {
        LATENCY: described(LATENCY, "us", ["backend", "bytes"], BACKENDS),
        IMPORT: described(IMPORT, "seconds", [], []),
    }
    write(folder / "benchmarks.json", benchmarks)
    machine = folder / "bench"
    (machine).mkdir()
    (machine / "machine.json").write_text('{"machine": "bench", "version": 1}')
    # The later commit's file comes first by name.
    later = {
        LATENCY: [[90.5, None, NAN, NAN], BACKENDS, "4f2a", 1, 2.5],
        IMPORT: [[0.125], [], "4f2a", 1, 0.9],
    }
    write(machine / f"{'0' * 8}-later.json", results(NEW, JUNE, later))
    earlier = {LATENCY: [[120.25, 300.0, NAN, NAN], BACKENDS, "4f2a", 1, 2.5], IMPORT: [None, []]}
    write(machine / f"{'1' * 8}-earlier.json", results(OLD, MAY, earlier))
    return folder


def report(folder: Path, page: Path) -> Result:
    return CliRunner().invoke(main, ["report", f"--history={folder}", f"--html={page}"])


class Page(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_curve_is_in_date_order_with_its_unit(history: Path) -> None:
    curves = {(c.benchmark, c.parameters): c for c in read_history(history)}
    assert len(curves) == 5
    curve = curves[LATENCY, (("backend", "'threads'"), ("bytes", "64"))]
    assert (curve.unit, curve.machine) == ("us", "bench")
    assert curve.environment == "virtualenv-py3.11-torch"
    assert [(p.commit, p.date, p.value) for p in curve.points] == [
        (OLD, MAY, 120.25), (NEW, JUNE, 90.5),
    ]  # fmt: skip


def test_what_failed_is_not_what_was_skipped(history: Path) -> None:
    curves = {(c.benchmark, c.parameters): c for c in read_history(history)}
    failed = curves[LATENCY, (("backend", "'threads'"), ("bytes", "4096"))]
    assert [p.value for p in failed.points] == [300.0, None]
    assert not failed.skipped
    skipped = curves[LATENCY, (("backend", "'jax'"), ("bytes", "64"))]
    assert skipped.skipped
    assert not skipped.measured
    # asv writes null for a benchmark of which everything failed.
    assert [p.value for p in curves[IMPORT, ()].points] == [None, 0.125]


def test_the_page_has_every_curve_and_says_what_is_missing(history: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = report(history, page)
    assert done.exit_code == 0, done.output
    assert done.output == f"{page}: 3 curves, 2 without a value\n"
    seen = Page(page.read_text())
    assert seen.tags.count("svg") == seen.tags.count("polyline") == 3
    assert seen.tags.count("circle") == 4
    assert f"{OLD}, 2026-05-01: 120.25 us" in seen.texts
    assert f"{NEW}, 2026-06-01: 90.5 us" in seen.texts
    assert f"{NEW}, 2026-06-01: failed" in seen.texts
    assert "2 n/a: skipped, because it can't be run there" in seen.texts
    assert "backend='jax', bytes=64" in seen.texts
    assert "no parameters" in seen.texts


def test_the_page_needs_nothing_else(history: Path, tmp_path: Path) -> None:
    report(history, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"<script|<link|<img|https?://|url\(|@import", text)


def test_lower_values_are_drawn_lower(history: Path, tmp_path: Path) -> None:
    report(history, tmp_path / "page.html")
    [points] = re.findall(r'points="(\S+,\S+ \S+,\S+)"', (tmp_path / "page.html").read_text())
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in points.split())
    assert x0 < x1
    assert y0 < y1  # downwards in SVG


def test_whatever_asv_wrote_is_text(history: Path, tmp_path: Path) -> None:
    evil = '<script>alert("&")</script>'
    params = [[f"'{evil}'"]]
    write(history / "benchmarks.json", {evil: described(evil, evil, [evil], params)})
    content = results(evil, MAY, {evil: [[1.0], params]}) | {"env_name": evil}
    write(history / evil.replace("/", "") / "a.json", content)
    done = report(history, tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    seen = Page((tmp_path / "page.html").read_text())
    assert "script" not in seen.tags
    assert f"{evil}='{evil}'" in seen.texts
    assert f"{evil}, 2026-05-01: 1 {evil}" in seen.texts


def test_a_benchmark_that_is_no_more_keeps_its_curve(history: Path) -> None:
    write(history / "benchmarks.json", {})
    curves = [c for c in read_history(history) if c.benchmark == LATENCY]
    assert curves[0].parameters == (("param1", "'threads'"), ("param2", "64"))
    assert curves[0].unit == ""


def test_no_folder(tmp_path: Path) -> None:
    done = report(tmp_path / "none", tmp_path / "page.html")
    assert done.exit_code == 2
    assert "is no folder; give the results_dir of asv.conf.json" in done.output
    assert not (tmp_path / "page.html").exists()


def test_no_results(tmp_path: Path) -> None:
    done = report(tmp_path, tmp_path / "page.html")
    assert done.exit_code == 2
    assert done.output == (
        f"disteval report: {tmp_path} has no results; run asv run, and give its results_dir\n"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "can't be read (Expecting property name"),
        ("[]", "has asv's layout None, but 2 is the one that is known here"),
        ('{"version": 1}', "has asv's layout 1, but 2 is the one that is known here"),
        ('{"version": 2}', "is not laid out as asv's results are (KeyError: 'results')"),
        ('{"version": 2, "results": []}', "is not laid out as asv's results are (AttributeError"),
    ],
)
def test_a_file_that_is_damaged(history: Path, content: str, reason: str) -> None:
    damaged = history / "bench" / "damaged.json"
    damaged.write_text(content)
    with pytest.raises(UsageError, match=re.escape(f"{damaged} {reason}")):
        read_history(history)


def test_fewer_values_than_parameters(history: Path) -> None:
    write(history / "bench" / "a.json", results(OLD, MAY, {LATENCY: [[1.0], BACKENDS]}))
    with pytest.raises(UsageError, match="is not laid out as asv's results are"):
        read_history(history)


def test_a_page_that_can_not_be_written(history: Path, tmp_path: Path) -> None:
    done = report(history, tmp_path / "none" / "page.html")
    assert done.exit_code == 2
    assert "page.html can't be written" in done.output

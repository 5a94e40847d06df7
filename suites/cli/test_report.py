"""``disteval report`` shows what asv and ``--json`` wrote, and trusts none of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.helpers.reports import Page
from suites.report.runs import FIT

pytestmark = needs("jinja2", "matplotlib")

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
    """Write asv's results for two commits and two benchmarks, one with parameters."""
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
    return invoke("report", f"--history={folder}", f"--html={page}")


def test_the_page_has_every_value_and_says_what_is_missing(history: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = report(history, page)
    assert done.exit_code == 0, done.output
    assert done.output == f"{page}: runs: 0, benchmarks: 2\n"
    text = page.read_text()
    assert Page(text).tags.count("svg") == 3
    said = re.sub(r"\s+", " ", " ".join(Page(text).texts))
    assert f"backend threads, bytes 64 {OLD[:8]} 2026-05-01 120.25" in said
    assert f"backend threads, bytes 64 {NEW[:8]} 2026-06-01 90.5" in said
    assert f"backend threads, bytes 4096 {NEW[:8]} 2026-06-01 failed" in said
    assert "2 n/a: skipped, because it can't be run there" in said
    assert "backend jax, bytes 64" in said
    assert "no parameters" in said
    # Ids of charts are their own, and colours come from the page.
    charts = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    ids = re.findall(r'\bid="([^"]*)"', charts)
    assert len(ids) == len(set(ids)) > 0
    assert "var(--series-0)" in charts and "<style" not in charts


def test_the_losses_of_a_training_are_a_chart(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(FIT))
    done = invoke("report", str(tmp_path / "run.json"), f"--html={tmp_path / 'page.html'}")
    assert done.exit_code == 0, done.output
    assert Page((tmp_path / "page.html").read_text()).tags.count("svg") == 1


def test_whatever_asv_wrote_is_text(history: Path, tmp_path: Path) -> None:
    evil = '<script>alert("&")</script>'
    params = [[f"'{evil}'"]]
    write(history / "benchmarks.json", {evil: described(evil, evil, [evil], params)})
    content = results(evil, MAY, {evil: [[1.0], params]}) | {"env_name": evil}
    write(history / evil.replace("/", "") / "a.json", content)
    done = report(history, tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    seen = Page((tmp_path / "page.html").read_text())
    assert seen.tags.count("script") == 1  # the page's own
    assert f"{evil} {evil}" in seen.texts
    assert evil[:8] in seen.texts


def refused(history: Path) -> str:
    """Return what the command says of results that it refuses."""
    page = history.parent / "page.html"
    done = report(history, page)
    assert done.exit_code == 2
    assert not page.exists()
    return done.stderr


@pytest.mark.parametrize(
    "content",
    ["{", "[" * 100_000, "[]", '{"version": 1}', '{"version": 2}', '{"version": 2, "results": []}'],
)
def test_a_file_that_is_damaged_is_named(history: Path, content: str) -> None:
    (history / "bench" / "damaged.json").write_text(content)
    assert "damaged.json" in refused(history)


@pytest.mark.parametrize("date", [-1, 253_402_300_800_000, 10**99, float("inf"), float("nan")])
def test_a_date_that_no_calendar_has(history: Path, date: float) -> None:
    write(history / "bench" / "a.json", results(OLD, MAY, {}) | {"date": date})
    assert "a.json" in refused(history)


def test_more_results_than_a_page_can_show(history: Path) -> None:
    hundred = [[str(i) for i in range(100)]] * 7
    write(history / "bench" / "a.json", results(OLD, MAY, {LATENCY: [None, hundred]}))
    assert str(100**7) in refused(history)  # counted before their product is made

"""``disteval report`` shows what asv and ``--json`` wrote, and trusts none of it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from disteval.errors import UsageError
from disteval.report.charts import (
    check_charts,
    loss_charts,
    make_benchmarks,
    shown,
    throughput_chart,
)
from disteval.report.history import read_history
from disteval.report.svg import Chart, Line, draw

from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.report.runs import FIT

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


class Page(HTMLParser):
    """The elements of a page that a browser would see."""

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


@needs("jinja2", "matplotlib")
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


def test_the_newest_values_are_drawn_over_the_parameter_of_the_widest_range(
    history: Path,
) -> None:
    newest = results(NEW, JUNE, {LATENCY: [[1.0, 8.0, 2.0, NAN], BACKENDS]})
    write(history / "bench" / f"{'0' * 8}-later.json", newest)
    [latency] = [b for b in make_benchmarks(read_history(history)) if b.name == LATENCY]
    over_bytes, *over_commits = latency.charts
    assert (over_bytes.log, over_bytes.x_label, over_bytes.y_label) == (True, "bytes", "us")
    assert list(over_bytes.ticks) == [(64.0, "64 B"), (4096.0, "4 KiB")]
    assert over_bytes.lines == [
        Line("threads", [(64.0, 1.0), (4096.0, 8.0)]), Line("jax", [(64.0, 2.0)]),
    ]  # fmt: skip
    assert [chart.title for chart in over_commits] == ["bytes 64", "bytes 4096"]
    assert over_commits[1].lines == [Line("threads", [(0.0, 300.0), (1.0, 8.0)])]


@needs("matplotlib")
def test_what_failed_at_a_commit_is_a_cross_at_the_foot(history: Path) -> None:
    [latency] = [b for b in make_benchmarks(read_history(history)) if b.name == LATENCY]
    _, chart = latency.charts
    small, large = chart.lines
    assert large == Line("bytes 4096", [(0.0, 300.0), (1.0, None)])
    lines = [small, Line("bytes 4096", [(0.0, 300.0)])]
    whole = Chart(chart.title, "commit", "us", lines, False, chart.ticks)
    assert draw(chart, "a").count("<use") == draw(whole, "a").count("<use") + 1


def test_evaluations_on_several_numbers_of_ranks_are_a_curve() -> None:
    runs = [
        {"framework": "torch", "backend": "mpi4py", "device": "cpu", "world_size": size,
         "images_per_second": 100.0 * size}
        for size in (4, 1, 2)
    ]  # fmt: skip
    [chart] = throughput_chart(runs)
    assert chart.lines == [Line("torch over mpi4py on cpu", [(1, 100.0), (2, 200.0), (4, 400.0)])]
    assert (chart.log, chart.y_label) == (True, "images/s")
    assert throughput_chart(runs[:1]) == []
    tasks = [
        {"task": "my:task", "backend": "threads", "world_size": size, "samples_per_second": 9.0}
        for size in (1, 2)
    ]
    of_models, of_tasks = throughput_chart(runs + tasks)
    assert of_models == chart
    assert of_tasks.lines == [Line("my:task over threads", [(1, 9.0), (2, 9.0)])]
    assert of_tasks.y_label == "samples/s"


def test_the_losses_of_a_training_are_a_chart() -> None:
    [chart] = loss_charts([("run.json", FIT)])
    train, val = chart.lines
    assert train == Line("train", [(1, 2.5), (2, 1.25)])
    assert val == Line("val", [(1, None), (2, 1.5)])
    assert (chart.title, chart.x_label, chart.y_label) == ("run.json", "epoch", "loss")
    assert loss_charts([("one.json", FIT | {"records": FIT["records"][:2]})]) == []


@needs("matplotlib")
def test_a_chart_takes_its_colours_from_the_page_and_has_ids_of_its_own() -> None:
    lines = [Line("_one $x$", [(1, 1.0), (8, 3.0)]), Line("<b>\x00", [(1, 2.0), (8, None)])]
    chart = Chart("t", "x", "y", lines, True, [(1, "1"), (8, "\ud800\n8")])
    text = draw(chart, "first")
    assert "style=" not in text
    assert "<style" not in text
    assert set(re.findall(r"#[0-9a-f]{6}", text)) <= {"#ffffff"}
    assert "var(--series-0)" in text
    assert "var(--series-1)" in text
    ids = re.findall(r'\bid="([^"]*)"', text)
    used = re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", text)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("first-") for name in ids)
    assert {a or b for a, b in used} <= set(ids)
    assert ">_one $x$<" in text.replace("> _", ">_")
    assert r"&lt;b&gt;\x00" in text
    assert r"\ud800" in text


@needs("jinja2", "matplotlib")
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


def test_a_benchmark_that_is_no_more_keeps_its_curve(history: Path) -> None:
    write(history / "benchmarks.json", {})
    curves = [c for c in read_history(history) if c.benchmark == LATENCY]
    assert curves[0].parameters == (("param1", "'threads'"), ("param2", "64"))
    assert curves[0].unit == ""
    assert shown(curves[0].parameters) == "param1 threads, param2 64"


@pytest.mark.parametrize(
    "content",
    ["{", "[" * 100_000, "[]", '{"version": 1}', '{"version": 2}', '{"version": 2, "results": []}'],
)
def test_a_file_that_is_damaged_is_named(history: Path, content: str) -> None:
    damaged = history / "bench" / "damaged.json"
    damaged.write_text(content)
    with pytest.raises(UsageError, match=re.escape(str(damaged))):
        read_history(history)


def test_parameters_are_counted_before_their_product_is_made(history: Path) -> None:
    hundred = [[str(i) for i in range(100)]] * 7
    write(history / "bench" / "a.json", results(OLD, MAY, {LATENCY: [None, hundred]}))
    with pytest.raises(UsageError, match=str(100**7)):
        read_history(history)


@pytest.mark.parametrize("date", [-1, 253_402_300_800_000, 10**99, float("inf"), float("nan")])
def test_a_date_that_no_calendar_has(history: Path, date: float) -> None:
    write(history / "bench" / "a.json", results(OLD, MAY, {}) | {"date": date})
    with pytest.raises(UsageError, match=r"a\.json"):
        read_history(history)


def test_more_results_or_charts_than_a_page_can_show(
    history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [[str(i) for i in range(1, 101)], [str(i) for i in range(90)]]
    write(history / "bench" / "a.json", results(OLD, MAY, {LATENCY: [[1.0] * 9000, many]}))
    charts = [chart for one in make_benchmarks(read_history(history)) for chart in one.charts]
    with pytest.raises(UsageError, match=rf"{90 * len(charts)} charts"):
        check_charts([*charts] * 90)
    monkeypatch.setattr("disteval.report.history._MAX_POINTS", 8_999)
    with pytest.raises(UsageError, match="8999"):
        read_history(history)


def test_fewer_values_than_parameters(history: Path) -> None:
    write(history / "bench" / "a.json", results(OLD, MAY, {LATENCY: [[1.0], BACKENDS]}))
    with pytest.raises(UsageError, match=r"a\.json"):
        read_history(history)

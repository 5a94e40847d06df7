"""A picture of a trace has a row a rank, and bars as long as what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from disteval import UsageError
from disteval.cli import main
from disteval.report.page import render
from disteval.report.pictures import LOOK, draw, make_pictures
from disteval.traces.folder import TraceFolder
from disteval.traces.recorder import Recorder

from suites.helpers.needs import needs

MS = 1_000_000
COLOURS = {colour: kind for kind, (_, colour, _) in LOOK.items()}


def write_trace(folder: Path, slow: int, title: str = "with 2 ranks") -> Path:
    """Write the trace of two ranks, of which the second computes for ``slow`` milliseconds."""
    place = TraceFolder(folder).new_world(title, 2)._replace(begin=0)
    for rank, computing in enumerate((20, slow)):
        recorder = Recorder(place, rank)
        end = (slow + 20) * MS
        recorder.add("order", "run", 0, end + 10 * MS)
        recorder.add("data", "load", 0, 10 * MS, samples=4)
        recorder.add("compute", "predict", 10 * MS, (10 + computing) * MS)
        recorder.add(
            "collective", "all_gather_object", (10 + computing) * MS, end, number=1, group=1
        )
        recorder.close()
    return folder


def bars(svg: str) -> list[dict[str, float]]:
    """Return the width of the bars of each row, by what they stand for."""
    rows: dict[float, dict[str, float]] = {}
    for rect in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"):
        kind = COLOURS.get(rect.get("fill", ""))
        middle = float(rect.get("y", 0)) + float(rect.get("height", 0)) / 2
        if kind is not None and middle > 20:  # below the legend
            row = rows.setdefault(middle, {})
            row[kind] = row.get(kind, 0.0) + float(rect.get("width", 0))
    return [row for _, row in sorted(rows.items())]


def test_bars_are_as_long_as_what_they_stand_for(tmp_path: Path) -> None:
    (picture,) = make_pictures([write_trace(tmp_path / "run", 70)])
    fast, slow = bars(draw(picture.summary, 0.1, alone=True))  # 600 units are 100 ms
    assert fast == {"data": 60, "compute": 120, "waiting": 300, "collective": 60, "other": 60}
    assert slow == {"data": 60, "compute": 420, "collective": 60, "other": 60}
    assert "it spent 0.05 s more than they in compute (predict)" in str(picture.summary.slowest)


def test_two_runs_have_one_scale(tmp_path: Path) -> None:
    folders = [write_trace(tmp_path / "before", 70), write_trace(tmp_path / "after", 20)]
    before, after = (bars(_of_its_own(one.svg)) for one in make_pictures(folders))
    assert before[0]["compute"] == after[0]["compute"] == after[1]["compute"] == 120
    assert before[1]["compute"] == 420


def _of_its_own(svg: str) -> str:
    for colour, own, _ in LOOK.values():
        svg = svg.replace(colour, own)
    return svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


@needs("jinja2")
def test_a_page_shows_traces_and_interprets_none_of_their_text(tmp_path: Path) -> None:
    evil = "</p><script>ran = 1</script>"
    page = render([], [], make_pictures([write_trace(tmp_path / "run", 70, evil)]))
    assert page.count("<svg") == 1 and page.count("<script>") == 1
    assert "&lt;script&gt;ran = 1" in page
    assert 'href="#traces"' in page and "Slowest: rank 1" in page


@needs("jinja2")
def test_the_command_draws_folders_beside_reports(tmp_path: Path) -> None:
    write_trace(tmp_path / "before", 70)
    write_trace(tmp_path / "after", 20)
    words: list[Any] = ["report", tmp_path / "before", tmp_path / "after", "--html"]
    result = CliRunner().invoke(main, [*map(str, words), str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert "runs: 0, benchmarks: 0, traces: 2" in result.output
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 2 and "before: world 1" in text and "after: world 1" in text
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(main, ["report", str(tmp_path / "empty"), "--html", "x.html"])
    assert result.exit_code == 2 and "holds no trace" in result.output


def test_a_trace_without_ranks_is_refused(tmp_path: Path) -> None:
    Recorder(TraceFolder(tmp_path / "run").new_world("", 1), None).close()
    with pytest.raises(UsageError, match="nothing to draw"):
        make_pictures([tmp_path / "run"])

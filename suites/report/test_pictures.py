"""A picture of a trace has a row a rank, and bars as long as what they stand for."""

import base64
import html
import re
from pathlib import Path

import pytest

from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.helpers.reports import bars, page
from suites.helpers.traces import Recorder, TraceFolder, place_from_zero

MS = 1_000_000


def write_trace(folder: Path, slow: int, title: str = "with 2 ranks") -> Path:
    """Write the trace of two ranks, of which the second computes for ``slow`` milliseconds."""
    place = place_from_zero(folder, title, 2)
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


def test_bars_are_as_long_as_what_they_stand_for(tmp_path: Path) -> None:
    fast, slow = bars(write_trace(tmp_path / "run", 70))
    assert fast == pytest.approx(
        {"data": 0.01, "compute": 0.02, "waiting": 0.05, "collective": 0.01, "other": 0.01}
    )
    assert slow == pytest.approx({"data": 0.01, "compute": 0.07, "collective": 0.01, "other": 0.01})


def images(text: str) -> list[str]:
    """Return the pictures of a page, as SVG."""
    found = re.findall('src="data:image/svg[+]xml;base64,([^"]*)"', text)
    return [base64.b64decode(one).decode() for one in found]


@needs("jinja2", "matplotlib")
def test_a_page_shows_traces_and_interprets_none_of_their_text(tmp_path: Path) -> None:
    evil = "</p><script>ran = 1</script>"
    shown = page(traces=[write_trace(tmp_path / "run", 70, evil)])
    [picture] = images(shown)
    assert all(name in picture for name in ("rank 0", "rank 1", "collective", "waiting"))
    assert shown.count("<script>") == 1 and "<script" not in picture
    assert html.escape("<script>ran") in shown
    assert 'href="#traces"' in shown
    assert re.search(r"rank 1.* 0\.05 s ", shown)  # so much longer than rank 0


@needs("jinja2", "matplotlib")
def test_two_runs_are_drawn_over_the_same_seconds(tmp_path: Path) -> None:
    folders = [write_trace(tmp_path / "before", 70), write_trace(tmp_path / "after", 20)]
    result = invoke("report", *map(str, folders), "--html", str(tmp_path / "page.html"))
    assert (result.exit_code, "traces: 2" in result.output) == (0, True), result.output
    text = (tmp_path / "page.html").read_text()
    assert "before: world 1" in text and "after: world 1" in text
    last = [re.findall(r">(\d+) .?s<", picture)[-1] for picture in images(text)]
    assert last[0] == last[1]  # the last tick of both axes
    (tmp_path / "empty").mkdir()
    result = invoke("report", str(tmp_path / "empty"), "--html", "x.html")
    assert (result.exit_code, str(tmp_path / "empty") in result.stderr) == (2, True)


@needs("jinja2")
def test_more_ranks_than_are_drawn_in_a_minute_are_refused(tmp_path: Path) -> None:
    for number in range(10):
        place = place_from_zero(tmp_path / str(number), "", 31)
        for rank in range(31):
            recorder = Recorder(place, rank)
            recorder.add("compute", "predict", 0, MS)
            recorder.close()
    done = invoke("report", *map(str, tmp_path.iterdir()), f"--html={tmp_path / 'page.html'}")
    assert (done.exit_code, "300 ranks" in done.stderr) == (2, True), done.output


@needs("matplotlib")
def test_a_trace_without_ranks_is_refused(tmp_path: Path) -> None:
    Recorder(TraceFolder(tmp_path / "run").new_world("", 1), None).close()
    done = invoke("trace", str(tmp_path / "run"), f"--svg={tmp_path / 'p.svg'}")
    assert (done.exit_code, "run" in done.stderr) == (2, True), done.output

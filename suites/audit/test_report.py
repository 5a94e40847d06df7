"""The report of an audit fits the schema, and its page shows the matrix and the weights."""

import html
import json
import re
from pathlib import Path

import pytest

from suites.helpers.command import invoke
from suites.helpers.needs import needs

pytestmark = needs("jinja2", "jsonschema")


def audited(target: str, folder: Path) -> tuple[Path, str]:
    """Return the report and the page of an audit."""
    written = [f"--json={folder / 'r.json'}", f"--html={folder / 'p.html'}"]
    invoke("audit", f"suites.audit.{target}", "--backend=threads", "--world-size=1,2", *written)
    return folder / "r.json", (folder / "p.html").read_text()


def test_the_page_shows_cases_weights_and_the_command(tmp_path: Path) -> None:
    report, page = audited("wrong:counts_padding", tmp_path)
    said = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    columns, row = "N W=1 B=1 W=1 B=2 W=1 B=3 W=1 B=4 W=2 B=1", "3" + " ✓ pass" * 4 + " ✗ FAIL"
    weights = "0 0.5 0.3333 1 0.25 0.3333"
    replay = json.loads(report.read_text())["findings"][0]["replay"]
    for shown in (columns, row, weights, replay, "--case N=3,B=1,W=2"):
        assert shown in said
    meters = re.findall(r'<meter min="0" max="0.5" value="(.*?)"', page)
    assert "0.25" in meters


def test_a_sound_loop_has_no_findings_on_its_page(tmp_path: Path) -> None:
    _, page = audited("right:sums_of_integers", tmp_path)
    assert ("sums_of_integers" in page, "FAIL" in page) == (True, False)


def test_a_case_with_other_ids_is_not_in_the_matrix(tmp_path: Path) -> None:
    _, page = audited("wrong:returns_positions_as_ids", tmp_path)
    matrix = re.findall(r"<table.*?</table>", page, re.DOTALL)[0]
    assert ("pass" in matrix, "FAIL" in matrix, "dropped" in page) == (True, False, True)


def test_the_page_shows_what_each_rank_did_where_a_call_broke(tmp_path: Path) -> None:
    report, page = audited("wrong:needs_a_sample_on_every_rank", tmp_path)
    found = json.loads(report.read_text())["findings"][0]
    assert re.match(r"rank 1 raised .*\n  rank 0: returned\n", found["message"])
    for text in (found["message"], *found["evidence"][0]):
        assert text in html.unescape(page)


@pytest.mark.parametrize("verdict", ["sound", "fine"])
def test_a_page_judges_by_itself_what_fits_the_schema(verdict: str, tmp_path: Path) -> None:
    report, _ = audited("wrong:counts_padding", tmp_path)
    run, again = json.loads(report.read_text()), tmp_path / "again.html"
    report.write_text(json.dumps(run | {"verdict": verdict}))
    done = invoke("report", str(report), f"--html={again}")
    assert done.exit_code == (0 if verdict == "sound" else 2), done.output
    if verdict == "sound":
        page = re.sub(r"<[^>]*>", " ", again.read_text())
        assert len(re.findall(r"is wrong: \d+ cases were tried, \d+ wrong", page)) == 2
        assert "is sound" not in page

"""docs/findings.md and its reports are what the rows of findings say, and can be run."""

import ast
import re
from pathlib import Path

import pytest

from suites.docs.pages import REPORTS, ROOT, text_of
from suites.findings.replay import lines_missing, read_report
from suites.findings.table import Finding, entries, environments, findings
from suites.helpers.command import parse

FINDINGS = [pytest.param(one, id=one.slug) for one in findings()]


def test_the_page_has_each_finding_once_with_its_library_and_its_report() -> None:
    row = r"^\| (?:\[`([\w-]+)`\]\(findings/([\w-]+)\.md\)|`([\w-]+)`) \| (.+?) \|"
    found = re.findall(row, text_of("docs/findings.md"), re.MULTILINE)
    told = sorted((name or plain, library) for name, _, plain, library in found)
    assert told == sorted((one.slug, one.library) for one in findings())
    assert sorted(link for _, link, *_ in found if link) == sorted(Path(p).stem for p in REPORTS)
    assert all(name == link for name, link, *_ in found)


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_finding_can_be_replayed(finding: Finding) -> None:
    installed = environments()[finding.environment]["installs"]
    name, _, release = finding.library.rpartition(" ")
    pinned = "{" in "".join(installed) or f"{name}=={release}" in [
        *installed, *environments()[finding.environment].get("no_deps", ()), "torch==2.13.0",
    ]  # fmt: skip
    assert pinned, f"{finding.environment} does not install {finding.library}"
    assert finding.command or finding.report.exists()
    program, *words = finding.command.split() or ["python"]
    if program != "python":
        parse(program, *words)


def test_each_conviction_of_a_loop_has_a_row() -> None:
    told = {(loop, one.library) for one in findings() for loop in one.loops}
    shown = {loop for loop, _ in told}
    for (loop, release), entry in entries().items():
        if entry.kind and not release:
            assert loop in shown, f"no finding is about {loop}"
        elif entry.kind:
            assert (loop, f"{entry.library} {release}") in told, f"none is about {loop} {release}"


@pytest.mark.parametrize("page", REPORTS)
def test_a_report_is_short_and_does_without_our_package(page: str) -> None:
    report = read_report(Path(ROOT / page))
    assert report.program.count("\n") < 20, f"the program of {page} is too long"
    assert "disteval" not in report.program
    ast.parse(report.program)
    assert report.file in report.command
    assert "timeout" in report.command + report.program, f"the program of {page} may hang"


def test_what_a_report_shows_may_be_among_other_lines_and_vary_where_it_says_so() -> None:
    output = "a warning\nrank 1: 0.25rank 0: killed after 3.1 s\n\n"
    assert lines_missing("rank 0: killed after ... s\nrank 1: 0.25\n", output) == []
    wrong = ["rank 0: killed before ... s", "rank 1: 0.2", "rank 1: 0"]
    assert lines_missing("\n".join(wrong), output) == wrong

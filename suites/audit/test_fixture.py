"""The pytest fixture of audits fails a test of a wrong loop, and notes why for JUnit."""

import sys
from pathlib import Path
from xml.etree import ElementTree

from suites.helpers.processes import run_plainly

TEST = """
from suites.audit.right import sums_of_integers
from suites.audit.wrong import counts_padding_in_count


def test_right(disteval_audit):
    assert disteval_audit(sums_of_integers, (1, 2), backend="threads").verdict == "sound"


def test_wrong(disteval_audit):
    disteval_audit(counts_padding_in_count, (1, 2), backend="threads")
"""


def test_a_wrong_loop_fails_its_test_and_is_noted(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    options = ["-q", "-Werror::pytest.PytestWarning", "--junitxml=junit.xml", "test_mine.py"]
    found = run_plainly([sys.executable, "-m", "pytest", *options], tmp_path, 120.0)
    assert found.returncode == 1, found.stdout + found.stderr
    finding = "count is 2 instead of 1"
    assert (finding in found.stdout, "--case N=1,B=1,W=2" in found.stdout) == (True, True)
    right, wrong = (
        {each.get("name"): each.get("value", "") for each in case.iter("property")}
        for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    )
    assert right["disteval_verdict"] == "sound"
    assert finding in wrong["disteval_finding"]

"""The page about the audit says what the audit says about the loops on that page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from disteval.audit import AuditError, audit

from suites.docs.pages import blocks_of, write_files
from suites.processes import run_plainly
from suites.requirements import framework

PAGE = "docs/audit.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    framework("torch")
    write_files(PAGE, tmp_path)
    return tmp_path


def test_the_wrong_loop_is_convicted_as_the_page_shows(folder: Path) -> None:
    command = [sys.executable, "-m", "disteval.cli", "audit", "my_eval:evaluate", "--first"]
    found = run_plainly(command, folder, 120.0)
    assert found.returncode == 1, found.stderr
    shown = next(b.output for b in blocks_of(PAGE) if b.language == "bash" and b.output)
    expected = " ".join(shown.split("smallest case")[0].split())
    assert expected in " ".join(found.stdout.split())


def test_the_repaired_loop_is_sound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    report = audit("my_repaired_eval:evaluate", world_sizes=(1, 2))
    assert report.verdict == "sound"


def test_a_wrong_loop_fails_a_test(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(
        AuditError, match=r"counted twice: sample 0 of 3 counts 0\.5 instead of 0\.333333"
    ):
        audit("my_eval:evaluate", world_sizes=(2,))

"""The pages about the audit say what it says about their loops, and their tests pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from disteval.audit import audit
from disteval.audit.cases import cases
from disteval.audit.runner import DEFAULT_WORLD_SIZES

from suites.docs.pages import blocks_of, text_of, write_files
from suites.helpers.needs import needs
from suites.helpers.processes import run_plainly

PAGE = "docs/audit.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    write_files(PAGE, tmp_path)
    return tmp_path


@needs("torch")
def test_the_wrong_loop_is_convicted_as_the_page_shows(folder: Path) -> None:
    command = [sys.executable, "-m", "disteval.cli", "audit", "my_eval:evaluate", "--first"]
    found = run_plainly(command, folder, 120.0)
    assert found.returncode == 1, found.stderr
    shown = next(b.output for b in blocks_of(PAGE) if b.language == "bash" and b.output)
    expected = " ".join(shown.split("smallest case")[0].split())
    assert expected in " ".join(found.stdout.split())
    tried = f"{len(list(cases(DEFAULT_WORLD_SIZES)))} cases were tried"
    assert text_of(PAGE).count(tried) == 2


@needs("torch")
def test_the_repaired_loop_is_sound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    report = audit("my_repaired_eval:evaluate", world_sizes=(1, 2))
    assert report.verdict == "sound"


@needs("accelerate")
def test_the_tests_of_a_training_library_pass_as_the_page_shows(tmp_path: Path) -> None:
    write_files("docs/audit_in_ci.md", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "test_evaluation.py"]
    found = run_plainly(command, tmp_path, 180.0)
    assert "2 passed" in found.stdout, found.stdout + found.stderr

"""The pages about the audit say what it says about their loops, and their tests pass."""

import re
import sys
from pathlib import Path

import pytest
from disteval.audit import Audit, AuditError, audit

from suites.docs.pages import text_of, write_files
from suites.helpers.needs import needs
from suites.helpers.processes import run_plainly

PAGE = "docs/audit.md"


@needs("torch")
def test_the_repaired_loop_of_the_page_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`suites/docs/test_messages.py` compares what is said of the loop before it was repaired."""
    write_files(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert audit("my_repaired_eval:evaluate", world_sizes=(2,)).verdict == "sound"


def test_the_jobs_of_the_page_are_sound_only_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(PAGE, tmp_path)
    source = (tmp_path / "my_jobs.py").read_text()
    (tmp_path / "my_lax_jobs.py").write_text(re.sub(r"    if .*\n.*raise.*\n", "", source))
    monkeypatch.syspath_prepend(tmp_path)
    assert Audit("my_jobs:evaluate", (2,), "threads").run().verdict == "sound"
    with pytest.raises(AuditError) as found:
        audit("my_lax_jobs:evaluate", case="N=7,B=1,W=2,lost=0", backend="threads")
    assert " ".join(found.value.report.findings[0].sentence.split()) in " ".join(
        text_of(PAGE).split()
    )


@needs("accelerate")
def test_the_tests_of_a_training_library_pass_as_the_page_shows(tmp_path: Path) -> None:
    write_files("docs/suites.md", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "test_evaluation.py"]
    found = run_plainly(command, tmp_path, 180.0)
    assert "2 passed" in found.stdout, found.stdout + found.stderr

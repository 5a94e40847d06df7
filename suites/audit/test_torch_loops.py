"""The audit judges loops in plain torch, on real gloo ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from disteval.audit import Audit
from disteval.audit.findings import case_text

from suites.requirements import framework

framework("torch")

from suites.audit.torch_loops import RIGHT, WRONG  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_torch_loop_is_convicted_in_its_smallest_case(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    _, kind, case = WRONG[name]
    target = f"suites.audit.torch_loops:{name}"
    report = Audit(target, (2,), tokens="tokens" in case, timeout=5.0, first=True).run()
    assert report.verdict == "wrong", (report.counts, report.reason, report.details)
    found = report.findings[0]
    assert (found.kind, case_text(found.settings)) == (kind, case), str(found)
    if kind in ("hangs", "crashes"):
        assert "rank 0 waits in all_reduce" in found.sentence
    # Ranks that wait are killed, and leave nothing behind all the same.
    assert not list(tmp_path.glob("disteval-*"))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_torch_loop_is_sound(name: str) -> None:
    report = Audit(f"suites.audit.torch_loops:{name}", (1, 2, 3)).run()
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")
    assert report.counts["right"] > 100

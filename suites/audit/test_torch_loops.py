"""The audit judges loops in plain torch, on real gloo ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from disteval.audit import Audit
from disteval.audit.findings import case_text
from disteval.worlds import World

from suites.audit.parts import JoinedOnce
from suites.helpers.needs import framework, needs

framework("torch")

from suites.audit.torch_loops import RIGHT, WRONG  # noqa: E402

pytestmark = needs("torch")


ALONE = ("hangs", "crashes", "differs from call to call")
"""The kinds for which an audit starts ranks again, and so needs ranks of its own."""


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[World]:
    """Two ranks for all loops that leave them as they are."""
    with JoinedOnce("torch_cpu", 2) as world:
        yield world


@pytest.mark.parametrize(
    "name", [name for name, (_, kind, _) in WRONG.items() if kind not in ALONE]
)
def test_a_wrong_torch_loop_is_convicted(name: str, two_ranks: World) -> None:
    _, kind, case = WRONG[name]
    target = f"suites.audit.torch_loops:{name}"
    report = Audit(target, (2,), tokens="tokens" in case, first=True, led=two_ranks).run()
    assert report.verdict == "wrong", (report.counts, report.reason, report.details)
    found = report.findings[0]
    assert (found.kind, case_text(found.settings)) == (kind, case), str(found)
    if name == "every_worker_loads_the_stream":
        workers = "by workers 0 and 1 of rank 0 and workers 0 and 1 of rank 1"
        assert f"sample 4 was fetched 4 times, {workers}" in found.sentence


@pytest.mark.parametrize("name", [name for name, (_, kind, _) in WRONG.items() if kind in ALONE])
def test_a_wrong_torch_loop_is_convicted_by_new_ranks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    _, kind, case = WRONG[name]
    target = f"suites.audit.torch_loops:{name}"
    report = Audit(target, (2,), timeout=5.0, first=True).run()
    assert report.verdict == "wrong", (report.counts, report.reason, report.details)
    found = report.findings[0]
    assert (found.kind, case_text(found.settings)) == (kind, case), str(found)
    if kind in ("hangs", "crashes"):
        assert "rank 0 waits in all_reduce" in found.sentence
    # Ranks that wait are killed, and leave nothing behind all the same.
    assert not list(tmp_path.glob("disteval-*"))


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_torch_loop_is_sound(name: str, two_ranks: World) -> None:
    report = Audit(f"suites.audit.torch_loops:{name}", (2,), led=two_ranks).run()
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")
    assert report.counts["right"] > 40

"""The audit convicts every wrong loop with its smallest case, and no right one."""

from __future__ import annotations

import pytest
from disteval.audit import Audit
from disteval.audit.findings import case_text

from suites.audit import wrong, wrong_by_slip  # noqa: F401  their loops are in the table
from suites.audit.parts import WRONG
from suites.audit.right import RIGHT, Loop


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_convicted_in_its_smallest_case(name: str) -> None:
    loop, kind, case = WRONG[name]
    report = Audit(loop, backend="threads", tokens="tokens" in case, first=True).run()
    assert report.verdict == "wrong", (report.counts, report.reason, report.details)
    found = report.findings[0]
    assert (found.kind, case_text(found.settings)) == (kind, case), str(found)


@pytest.mark.parametrize("loop", RIGHT, ids=lambda loop: loop.__name__)
def test_a_right_loop_is_sound(loop: Loop) -> None:
    report = Audit(loop, backend="threads").run()
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")
    assert report.counts["right"] > 100


def test_what_fills_a_batch_up_is_told_from_a_sample() -> None:
    loop, *_ = WRONG["fills_the_last_batch_with_zeros"]
    found = Audit(loop, backend="threads", first=True).run().findings[0]
    assert found.sentence.endswith(
        "it is 0.5 instead of 0: what is no sample counts, such as the rows that fill a batch up"
    )

"""The audit judges loops with accelerate and torchmetrics, on real gloo ranks."""

from __future__ import annotations

import pytest
from disteval.audit import Audit
from disteval.audit.findings import case_text

from suites.requirements import framework

WRONG = {
    "sums_of_prepared_batches": ("counted twice", "N=1,B=1,W=2"),
    "gathered_with_padding": ("counted twice", "N=3,B=1,W=2"),
    "mean_of_losses": ("weighted wrongly", "N=3,B=2,W=2"),
    "torchmetrics_with_padding": ("counted twice", "N=3,B=1,W=2"),
}
LOOPS = "suites.audit.accelerate_loops"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_convicted_in_its_smallest_case(name: str) -> None:
    framework("torchmetrics" if name.startswith("torchmetrics") else "accelerate")
    report = Audit(f"{LOOPS}:{name}", (2,), timeout=60.0, first=True).run()
    assert report.findings, (report.reason, report.details)
    found = report.findings[0]
    assert (found.kind, case_text(found.settings)) == WRONG[name], str(found)


def test_a_right_loop_is_sound() -> None:
    framework("accelerate")
    report = Audit(f"{LOOPS}:even_batches_off", (1, 2), timeout=60.0).run()
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")

"""The audit judges loops with accelerate and torchmetrics, on real gloo ranks."""

from __future__ import annotations

import re

import pytest
from disteval.audit import Audit
from disteval.audit.cases import parse
from disteval.audit.findings import case_text
from disteval.worlds.postmortem import PARTED

from suites.helpers.needs import needs

pytestmark = needs("torch_cpu", "accelerate", "torchmetrics")

WRONG = {
    "sums_of_prepared_batches": ("counted twice", "N=1,B=1,W=2"),
    "gathered_with_padding": ("counted twice", "N=3,B=1,W=2"),
    "mean_of_losses": ("weighted wrongly", "N=3,B=2,W=2"),
    "torchmetrics_with_padding": ("counted twice", "N=3,B=1,W=2"),
}
LOOPS = "suites.audit.accelerate_loops"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_convicted_in_its_smallest_case(name: str) -> None:
    report = Audit(f"{LOOPS}:{name}", (2,), timeout=60.0, first=True).run()
    assert report.findings, (report.reason, report.details)
    found = report.findings[0]
    assert (found.kind, case_text(found.settings)) == WRONG[name], str(found)


@pytest.mark.parametrize(
    ("name", "waits", "call"),
    [
        (
            "objects_gathered_in_each_batch",
            "rank 0 waits in all_gather_object (accelerate_loops.py, line ",
            r"all_gather #\d+ \(1 int64, as all_gather_object and gather_object begin\)",
        ),
        (
            "torchmetrics_of_ranks_with_samples",
            "rank 0 waits in barrier (accelerate_loops.py, line ",
            r"barrier #\d+",
        ),
    ],
)
def test_the_call_that_a_library_made_when_ranks_parted_is_named(
    name: str, waits: str, call: str
) -> None:
    case = parse("N=1,B=1,W=2")
    found = Audit(f"{LOOPS}:{name}", timeout=60.0, only=case).run().findings[0]
    assert (found.kind, waits in found.sentence) == ("crashes", True), found.sentence
    parted = rf"{PARTED.strip()} rank 0 is in {call}, rank 1 made no call( after |$)"
    assert re.search(parted, found.sentence), found.sentence


def test_a_right_loop_is_sound() -> None:
    report = Audit(f"{LOOPS}:even_batches_off", (1, 2), timeout=60.0).run()
    assert (report.verdict, report.findings, report.reason) == ("sound", [], "")

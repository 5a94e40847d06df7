"""Evaluation loops of older releases, which newer ones judge otherwise."""

from __future__ import annotations

from typing import Any

from disteval.audit import Case

from suites.evalbugs import torchmetrics_loops
from suites.evalbugs.table import ENTRIES, wrong

ENTRIES.clear()  # what the newest releases must be judged


@wrong(
    "torchmetrics", "defect", "crashes", "N=1,B=1,W=2",
    "https://github.com/Lightning-AI/torchmetrics/issues/2463",
)  # fmt: skip
def cat_of_vectors(case: Case) -> Any:
    """``CatMetric`` where a rank may have no samples; repaired since."""
    return torchmetrics_loops.cat_of_vectors(case)

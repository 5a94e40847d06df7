"""What ignite does."""

from __future__ import annotations

from suites.findings.table import of_loop

FINDINGS = [
    of_loop(
        "ignite-epoch-metric",
        "other_loops:ignite_epoch_metric",
        subject="`EpochMetric` over shares of unequal length",
        what="a rank loses its connection while predictions are gathered; MONAI, which the thread "
        "is about, pads by itself",
        promise="[all stored data is collected over all processes](https://docs.pytorch.org/ignite/"
        "generated/ignite.metrics.EpochMetric.html)",
    ),
    of_loop(
        "ignite-rank-without-samples",
        "other_loops:ignite_own_share",
        subject="a metric where a rank has no sample",
        what='rank 1 raises "Input data has zero size", rank 0 waits',
        promise="the error says so",
    ),
    of_loop(
        "ignite-auto-dataloader",
        "other_loops:ignite_average",
        subject="`auto_dataloader` and `Average`",
        what="sample 0 counts 0.667 instead of 0.5: it sets up a `DistributedSampler`",
    ),
    of_loop(
        "ignite-computed-before-the-end",
        "other_loops:ignite_computed_before_the_end",
        release="0.4.10",
        subject="`Average` that is computed after the first batch, and at the end",
        what="sample 2 counts 0.167 instead of 0.25. What the first `compute` has summed over the "
        "ranks is summed again",
        later="right in 0.5.5",
    ),
]

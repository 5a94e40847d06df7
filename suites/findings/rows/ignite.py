"""What ignite does."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_DOCS = "https://docs.pytorch.org/ignite/distributed.html#ignite.distributed.utils."

FINDINGS = [
    of_loop(
        "ignite-epoch-metric",
        "ignite_loops:epoch_metric",
        subject="`EpochMetric` over shares of unequal length",
        what="a rank loses its connection while predictions are gathered; MONAI, which the thread "
        "is about, pads by itself",
        promise="[all stored data is collected over all processes](https://docs.pytorch.org/ignite/"
        "generated/ignite.metrics.EpochMetric.html)",
    ),
    of_loop(
        "ignite-parity-of-groups",
        "ignite_loops:parity_of_groups",
        subject="`DemographicParityDifference` where a rank has no sample of a group",
        what="the ranks wait for each other in `all_reduce`: one sends one number, and the others "
        "send one for each class",
        promise="[metrics can be used in a distributed setting](https://docs.pytorch.org/ignite/metrics.html)",
    ),
    of_loop(
        "ignite-rank-without-samples",
        "ignite_loops:own_share",
        subject="a metric where a rank has no sample",
        what='rank 1 raises "Input data has zero size", rank 0 waits',
        promise="the error says so",
    ),
    of_loop(
        "ignite-auto-dataloader",
        "ignite_loops:average",
        subject="`auto_dataloader` and `Average`",
        what="sample 0 counts 0.667 instead of 0.5: it sets up a `DistributedSampler`",
    ),
    of_loop(
        "ignite-computed-before-the-end",
        "ignite_loops:computed_before_the_end",
        release="0.4.10",
        subject="`Average` that is computed after the first batch, and at the end",
        what="sample 2 counts 0.167 instead of 0.25. What the first `compute` has summed over the "
        "ranks is summed again",
        later="right in 0.5.5",
    ),
    Finding(
        slug="ignite-text",
        library="pytorch-ignite 0.5.5",
        environment="newest",
        command="check suites.findings.adapters_over_torch:IgniteTexts --rules 2.1 --world-size 2",
        says="rule 2.1, world size 2: broken",
        subject="`idist.all_gather` and `idist.broadcast` of a text",
        case='gather "éa"',
        what='every rank gets "é\\x03", without an error; "é" raises `UnicodeDecodeError`, and '
        '"日本" raises on the rank that holds it. The tensor has room for the characters of the '
        "text instead of its UTF-8 bytes",
        promise=f"[it takes a str]({_DOCS}all_gather)",
        kind="defect",
    ),
    Finding(
        slug="ignite-numbers",
        library="pytorch-ignite 0.5.5",
        environment="newest",
        command="check suites.findings.adapters_over_torch:IgniteNumbers --rules 3.2 --world-size "
        "2",
        says="rule 3.2, world size 2: broken",
        subject="`idist.broadcast` of a number",
        case="broadcast 16777217",
        what="every rank, the source too, gets 16777216.0; 0.1 becomes 0.10000000149011612 and 3 "
        "becomes 3.0. Numbers travel as float32; `all_gather` keeps them",
        promise=f"[its example]({_DOCS}broadcast) shows 12.3456 as it was",
        kind="defect",
        thread="https://github.com/pytorch/ignite/pull/2959",
    ),
    Finding(
        slug="ignite-group-leak",
        library="pytorch-ignite 0.5.5",
        environment="newest",
        command="check suites.findings.adapters_over_torch:IgniteRanks --rules 5.3 --world-size 2",
        says="rule 5.3, world size 2: broken",
        subject="`idist.all_gather` with `group=[0, 1]`",
        case="100 gathers",
        what="each call makes a process group that stays: 500 file descriptors and 300 threads "
        "more after 100 calls",
        promise=f"[the group may be a list of ranks]({_DOCS}all_gather)",
        kind="defect",
    ),
]

"""What torcheval's synchronisation of metrics does."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_DOCS = "https://github.com/meta-pytorch/torcheval/blob/main/torcheval/metrics/metric.py"

FINDINGS = [
    Finding(
        slug="torcheval-dict-state",
        library="torcheval 0.0.7",
        environment="newest",
        command="check suites.findings.adapters_over_torch:TorchevalDict --rules 2.1 --world-size "
        "2",
        says="rule 2.1, world size 2: broken",
        subject="`sync_and_compute` and all that use `sync_states`, of a metric whose state is a "
        "dictionary",
        case='rank 0 has `{"cat": 1}`, and rank 1 has `{"dog": 2}`',
        what='rank 0 gets `{"cat": 2}` from rank 1: every rank puts its own keys to the values of '
        "the others, without an error",
        promise=f"[a state may be a dictionary of tensors]({_DOCS})",
        kind="defect",
    ),
    of_loop(
        "torcheval-empty-rank-of-outputs",
        "other_loops:torcheval_two_outputs",
        subject="`MeanSquaredError` of several outputs where a rank has no sample",
        what="a rank is killed: its sum is a scalar, and that of the others is a vector, so the "
        "ranks call different collectives",
        promise="[metric states are synchronized, and the result is computed]("
        "https://docs.pytorch.org/torcheval/stable/generated/"
        "torcheval.metrics.toolkit.sync_and_compute.html)",
    ),
]

"""What torchdata does."""

from __future__ import annotations

from suites.findings.table import of_loop

FINDINGS = [
    of_loop(
        "torchdata-batcher-drop-last",
        "streaming_loops:nodes_by_default",
        subject="`torchdata.nodes.Batcher` without `drop_last=False`",
        what="the short batch at the end is dropped, which `DataLoader` keeps",
    ),
]

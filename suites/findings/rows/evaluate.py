"""What evaluate does."""

from __future__ import annotations

from suites.findings.table import of_loop

FINDINGS = [
    of_loop(
        "evaluate-rank-without-samples",
        "other_loops:evaluate_metric",
        subject="a metric that gathers by files, where a rank has no sample",
        what="rank 0 raises after the timeout, 100 s by default: it waits for a file that the "
        "other rank writes in its first `add_batch`. A rank without samples may add empty lists",
        promise="on one process the error says so: call `add` or `add_batch` at least once",
    ),
]

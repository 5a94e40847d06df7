"""What mpi4py does."""

from __future__ import annotations

from suites.findings.table import Finding

FINDINGS = [
    Finding(
        slug="mpi4py-gather-of-what-cannot-be-pickled",
        library="mpi4py 4.1.2",
        environment="mmeval",
        command="check suites.findings.adapters:MPI4PyPlain --rules 6.1 --world-size 2 --timeout 5",
        says="rule 6.1, world size 2: broken",
        subject="`allgather`",
        case="rank 0 of two gathers an object that can't be pickled",
        what="rank 0 raises, and rank 1 waits for ever",
        promise="mpi4py does not promise an error on all ranks",
        kind="documented",
    ),
]

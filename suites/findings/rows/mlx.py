"""What MLX's distributed ring does."""

from __future__ import annotations

from suites.findings.table import Finding

_REFERENCE = "https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.distributed."
_ALL_GATHER = f"{_REFERENCE}all_gather.html"
_INIT = f"{_REFERENCE}init.html"
_RING = {"library": "mlx 0.32.4", "environment": "mlx", "command": "", "says": ""}
"""The programs of their reports show these findings."""

FINDINGS = [
    Finding(
        slug="mlx-ring-lost-rank",
        **_RING,
        subject="`all_gather` over the ring",
        case="rank 1 of four ends",
        what="rank 0 raises, and rank 3 waits for ever: only a neighbour is told of the loss, and "
        "there is no timeout",
        promise="[#4060](https://github.com/ml-explore/mlx/pull/4060), which was merged, is to "
        '"fail on peer disconnect instead of hanging forever"',
        kind="defect",
        thread="https://github.com/ml-explore/mlx/pull/4060",
    ),
    Finding(
        slug="mlx-ring-bytes-of-later-calls",
        **_RING,
        subject="`all_gather` over the ring",
        case="rank 3 of four ends, and rank 2 goes on after the error",
        what="rank 1 gets the numbers of rank 2's next call in place of those of ranks 3 and 0, "
        "without an error",
        promise=f"[documented]({_ALL_GATHER}): the arrays of all processes are gathered",
        kind="defect",
    ),
    Finding(
        slug="mlx-ring-waits-after-an-error",
        **_RING,
        subject="`all_gather` over the ring",
        case="rank 1 of two ends, and rank 0 goes on after the error",
        what="a later call, mostly the third, waits for ever: the thread that served the "
        "connection has ended, and nobody does the tasks that it is given",
        promise="[#3862](https://github.com/ml-explore/mlx/issues/3862), repaired in part, is "
        "labelled a bug: nothing is raised, and the job waits for ever",
        kind="defect",
        thread="https://github.com/ml-explore/mlx/issues/3862",
    ),
    Finding(
        slug="mlx-ring-shared-port",
        **_RING,
        subject="`mlx.launch` with the ring",
        case="two jobs of four ranks at once on one machine",
        what="ranks of different jobs become one ring, and each job computes with the other's "
        "numbers: the ring listens with `SO_REUSEPORT`, and every job at ports from 32323 on",
        promise=f"[`init` returns the group of all the launched processes]({_INIT})",
        kind="defect",
    ),
    Finding(
        slug="mlx-all-gather-two-gib",
        **_RING,
        subject="`all_gather`",
        case="two ranks gather a GiB each",
        what="the result has the shape (-2147483648,), and reading it is a segmentation fault",
        promise=f"[documented]({_ALL_GATHER}): the concatenation of all arrays",
        kind="defect",
        thread="https://github.com/ml-explore/mlx/issues/2681",
    ),
    Finding(
        slug="mlx-launch-one-rank",
        **_RING,
        subject="`mlx.launch` and `mlx.core.distributed.init`",
        case="`mlx.launch -n 1`",
        what="`init()` raises an error about JSON, because the hostfile of a single rank is empty",
        promise="[documented](https://ml-explore.github.io/mlx/build/html/usage/distributed.html): "
        "all operations do nothing in a group of one, so that no program need ask",
        kind="defect",
    ),
]

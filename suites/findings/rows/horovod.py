"""What Horovod does."""

from __future__ import annotations

from suites.findings.table import Finding

FINDINGS = [
    Finding(
        slug="horovod-stall-shutdown",
        library="horovod 0.28.1",
        environment="horovod",
        command="check tf_horovod --rules 7.4 --world-size 2",
        says="rule 7.4, world size 2: broken",
        subject="over Gloo, with TensorFlow 2.21.0",
        case="rank 0 of two never calls a collective",
        what="rank 1 waits for ever with any value of `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS`, "
        "because the stall inspector has an empty list of ranks; `tools/build_horovod.py` "
        "repairs it",
        promise="[#920](https://github.com/horovod/horovod/pull/920): the job ends if a rank "
        "stalls for longer than that",
        kind="defect",
    ),
]

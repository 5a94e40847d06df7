"""What TensorFlow's own collectives do."""

from __future__ import annotations

from suites.findings.table import Finding

FINDINGS = [
    Finding(
        slug="tensorflow-timeout-threads",
        library="tensorflow 2.21.0",
        environment="tensorflow",
        command="check suites.findings.adapters_tensorflow:Timed --rules 5.3 --world-size 2",
        says="rule 5.3, world size 2: broken",
        subject="`MultiWorkerMirroredStrategy` with `CommunicationOptions(timeout_seconds=86400)`",
        case="200 gathers",
        what="each gather leaves a thread that sleeps until the timeout has passed: thousands of "
        "threads after a few thousand gathers; in a container that allows fewer threads the "
        "process aborts. Our adapter sets no timeout there, and waits in one thread of its own",
        promise="[`timeout_seconds`](https://www.tensorflow.org/api_docs/python/tf/distribute/"
        "experimental/CommunicationOptions) lets a collective that takes longer raise an error; "
        "nothing is said of threads",
        kind="defect",
    ),
]

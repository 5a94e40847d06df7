"""What NumPy does."""

from __future__ import annotations

from suites.findings.table import Finding

FINDINGS = [
    Finding(
        slug="numpy-pickle-byte-order",
        library="numpy 2.4.6",
        environment="mmeval",
        command="check suites.findings.adapters:TorchPlain --rules 2.2 --world-size 2",
        says="rule 2.2, world size 2: broken",
        subject="pickle protocols 2 to 4, by which `all_gather_object` of torch sends",
        case='`pickle.loads(pickle.dumps(np.arange(4, dtype=">i4"), protocol=4)).dtype`',
        what="the result is `<i4`, with the same values: the byte order is lost; protocol 5 keeps "
        "it",
        promise="a comment in its source says that bytes are swapped when an array is read",
        kind="documented",
        newest=False,
    ),
]

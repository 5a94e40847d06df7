"""What ray.util.collective does."""

from __future__ import annotations

from suites.findings.table import Finding

_DOCS = "https://docs.ray.io/en/latest/ray-more-libs/ray-collective.html"
_GROUP = (
    "https://docs.ray.io/en/latest/ray-more-libs/api/doc/"
    "ray.util.collective.collective.init_collective_group.html"
)

FINDINGS = [
    Finding(
        slug="ray-gloo-timeout",
        library="ray 2.60.0",
        environment="ray",
        command="check suites.findings.adapters_ray:RayTimed --rules 7.4 --world-size 2",
        says="rule 7.4, world size 2: broken",
        subject="`init_collective_group` with `gloo_timeout`",
        case="rank 1 of two never calls a collective",
        what="rank 0 waits for torch's default, 30 minutes, with any value: the timeout is that of "
        "the rendezvous only",
        promise=f'[it is the "timeout in milliseconds for GLOO operations"]({_GROUP})',
        kind="defect",
    ),
    Finding(
        slug="ray-second-group-ranks",
        library="ray 2.60.0",
        environment="ray",
        command="check suites.findings.adapters_ray:RaySecond --rules 2.1 --world-size 2",
        says="rule 2.1, world size 2: broken",
        subject="a second gloo group of the same actors",
        case="two actors that change places in the second group",
        what="`allgather` returns the tensors in the order of the first group, and `broadcast` "
        "sends another rank's tensor, without an error",
        promise=f'["multiple collective groups can be constructed"]({_DOCS})',
        kind="defect",
    ),
]

"""What JAX's helpers for several hosts do."""

from __future__ import annotations

from suites.findings.table import Finding

_DOCS = "https://docs.jax.dev/en/latest/"

FINDINGS = [
    Finding(
        slug="jax-assert-equal",
        library="jax 0.10.2",
        environment="jax",
        command="python -m suites.findings.equal",
        says="0.1 and 0.1 are not equal",
        subject="`multihost_utils.assert_equal`",
        case="0.1 on both of two hosts",
        what="`AssertionError`: the gathered value is a float32, and the local one is not. NaN, "
        "and integers from 2**31 on, are not equal either",
        promise='[it "verifies that all the hosts have the same tree of values"]('
        f"{_DOCS}_autosummary/jax.experimental.multihost_utils.assert_equal.html)",
        kind="defect",
    ),
    Finding(
        slug="jax-negative-zero",
        library="jax 0.10.2",
        environment="jax",
        command="check suites.findings.adapters_jax:JaxFloats --rules 3.2 --world-size 2",
        says="rule 3.2, world size 2: broken",
        subject="`multihost_utils.broadcast_one_to_all` of floating-point numbers",
        case="broadcast -0.0",
        what="every host, the source too, gets 0.0: the value is added to zeros. Subnormal "
        "numbers become 0.0",
        promise='[the leaves "contain the data from the first host"]('
        f"{_DOCS}_autosummary/jax.experimental.multihost_utils.broadcast_one_to_all.html)",
        kind="defect",
    ),
    Finding(
        slug="jax-gather-64-bits",
        library="jax 0.10.2",
        environment="jax",
        command="check suites.findings.adapters_jax:JaxIntegers --rules 2.1 --world-size 2",
        says="rule 2.1, world size 2: broken",
        subject="`multihost_utils.process_allgather` of 64-bit integers",
        case="gather 2**40 + 1",
        what="every host gets 1, of type int32, without an error or a warning",
        promise=f"[32 bits are the default]({_DOCS}default_dtypes.html) without `jax_enable_x64`",
        kind="documented",
    ),
]

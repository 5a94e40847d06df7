"""What mmengine's collectives do."""

from __future__ import annotations

from suites.findings.table import Finding

_DOCS = "https://mmengine.readthedocs.io/en/latest/api/generated/mmengine.dist."

FINDINGS = [
    Finding(
        slug="mmengine-collect-none",
        library="mmengine-lite 0.10.7",
        environment="newest",
        command="check suites.findings.adapters_over_torch:MMEngineCollect --rules 2.1 "
        "--world-size 2",
        says="rule 2.1, world size 2: broken",
        subject="`collect_results`",
        case="a result that is None",
        what="it is dropped on several ranks and kept on one: the list is shorter than `size`, "
        "and later results stand at other samples' places",
        promise=f'[each item "should be a picklable object"]({_DOCS}collect_results.html)',
        kind="defect",
    ),
    Finding(
        slug="mmengine-collect-tmpdir",
        library="mmengine-lite 0.10.7",
        environment="newest",
        command="check suites.findings.adapters_over_torch:MMEngineCollectTwice --rules 2.1 "
        "--world-size 2",
        says="rule 2.1, world size 2: broken",
        subject='`collect_results` with `device="cpu"` and a `tmpdir`',
        case="two calls with one folder, where rank 0 needs a moment to read",
        what="the first call returns results of the second, without an error, and then rank 0 "
        "removes the second one's files, which fails",
        promise='[`tmpdir` is a "temporal directory for collected results"]('
        f"{_DOCS}collect_results.html)",
        kind="defect",
    ),
    Finding(
        slug="mmengine-gather-subgroup",
        library="mmengine-lite 0.10.7",
        environment="newest",
        command="check suites.findings.adapters_over_torch:MMEngineGroup --rules 2.1 --world-size "
        "3 --timeout 5",
        says="rule 2.1, world size 3: broken",
        subject="`gather` and `gather_object` in a group",
        case="the group of ranks 1 and 2",
        what="every `dst` raises: mmengine takes it for a rank of the group, and torch for one of "
        "all ranks",
        promise=f"[they take a group and a destination rank]({_DOCS}gather_object.html)",
        kind="defect",
    ),
    Finding(
        slug="mmengine-reduce-dict",
        library="mmengine-lite 0.10.7",
        environment="newest",
        command="check suites.findings.adapters_over_torch:MMEngineSums --rules 2.1 --world-size 2",
        says="rule 2.1, world size 2: broken",
        subject="`all_reduce_dict` of integers and a float",
        case="the integer 16777217 on two ranks",
        what="the sum is 33554432.0 of type float32 instead of 33554434: all entries get one dtype",
        promise=f"[all ranks get the reduced dict]({_DOCS}all_reduce_dict.html)",
        kind="defect",
    ),
]

"""What xgboost's collectives do."""

from __future__ import annotations

from suites.findings.table import Finding

_DOCS = "https://xgboost.readthedocs.io/en/stable/python/python_api.html#module-xgboost.collective"

FINDINGS = [
    Finding(
        slug="xgboost-allreduce-shape",
        library="xgboost-cpu 3.2.0",
        environment="xgboost",
        command="check suites.findings.adapters_xgboost:XGBoostSums --rules 2.1 --world-size 2",
        says="rule 2.1, world size 2: broken",
        subject="`collective.allreduce`",
        case="an array of shape (2, 3)",
        what="the result has the shape (6,); repaired in 3.4.1, which needs Python 3.12",
        promise=f'["have same shape as data"]({_DOCS})',
        kind="defect",
        thread="https://github.com/dmlc/xgboost/pull/12377",
        newest=False,
    ),
    Finding(
        slug="xgboost-broadcast-none",
        library="xgboost-cpu 3.2.0",
        environment="xgboost",
        command="check suites.findings.adapters_xgboost:XGBoostObjects --rules 3.1 --world-size 2",
        says="rule 3.1, world size 2: broken",
        subject="`collective.broadcast`",
        case="broadcast None",
        what="the root raises `AssertionError`, and the other ranks wait until the root leaves, "
        "or their timeout",
        promise=f"the [reference]({_DOCS}) allows None on the other ranks alone",
        kind="documented",
        newest=False,
    ),
]

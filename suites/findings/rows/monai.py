"""What MONAI's collectives do."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_DOCS = "https://docs.monai.io/en/stable/utils.html"

FINDINGS = [
    Finding(
        slug="monai-empty-strings",
        library="monai 1.6.1",
        environment="monai",
        command="check suites.findings.adapters_over_torch:MonaiTexts --rules 2.3 --world-size 2",
        says="rule 2.3, world size 2: broken",
        subject="`string_list_all_gather`",
        case='rank 0 has `["a.nii"]`, and rank 1 has `[]`',
        what='every rank gets `["a.nii", ""]`: an empty string for each rank without strings',
        promise=f"[it gathers a list of strings]({_DOCS})",
        kind="defect",
    ),
    Finding(
        slug="monai-one-rank-list",
        library="monai 1.6.1",
        environment="monai",
        command="check suites.findings.adapters_over_torch:MonaiTensors --rules 2.1 --world-size 1",
        says="rule 2.1, world size 1: broken",
        subject="`evenly_divisible_all_gather` with `concat=False`",
        case="one rank",
        what="a tensor comes back instead of a list with one tensor: a loop over the ranks goes "
        "over its rows",
        promise=f'["if False, return a list of Tensors"]({_DOCS})',
        kind="defect",
    ),
    of_loop(
        "monai-rank-without-samples",
        "other_loops:monai_average",
        subject="`CumulativeAverage` where a rank has no sample",
        what="the rank without a sample returns 0, and the other waits in `all_reduce`",
        promise="[the average is taken across processes](https://docs.monai.io/en/stable/metrics.html"
        "#cumulative-average)",
    ),
]

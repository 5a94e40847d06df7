"""What litdata does."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_README = "https://github.com/Lightning-AI/litData"

FINDINGS = [
    Finding(
        slug="litdata-resume-on-more-ranks",
        library="litdata 0.2.76",
        environment="streams",
        command="",
        says="",
        subject="`StreamingDataset` that is resumed on more ranks",
        case="6 of 8 samples on one rank, the rest on two",
        what="every rank raises `ValueError`: what one rank has had is compared with what two have "
        "each",
        promise=f'["`num_workers` and `world_size` may change"]({_README}#pause-resume)',
        kind="defect",
        thread="https://github.com/Lightning-AI/litData/pull/878",
    ),
    of_loop(
        "litdata-combined-empty-share",
        "streaming_loops:combined",
        subject="`CombinedStreamingDataset` where a rank has no sample of one data set",
        what="a rank without samples raises `AssertionError`, and one that has samples of the "
        "other data set `ZeroDivisionError` after them",
        promise=f'["Iterate until **all** datasets are exhausted"]({_README}#combine-datasets)',
    ),
    of_loop(
        "litdata-drop-last",
        "streaming_loops:optimized_by_default",
        subject="`StreamingDataset` without `drop_last=False`",
        what="on several ranks the default is to drop samples, so that all have equally many",
    ),
]

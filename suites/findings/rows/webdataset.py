"""What webdataset does."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_FAQ = "https://github.com/webdataset/webdataset/blob/main/FAQ.md"

FINDINGS = [
    Finding(
        slug="webdataset-ddp-equalize",
        library="webdataset 1.0.2",
        environment="streams",
        command="",
        says="",
        subject="`WebLoader.ddp_equalize`",
        case="any",
        what="`AttributeError`: the method of the FAQ's program for validation does not exist",
        promise=f'["This setup ensures that each sample is processed once per epoch"]({_FAQ})',
        kind="defect",
        thread="https://github.com/webdataset/webdataset/issues/194",
    ),
    of_loop(
        "webdataset-empty-check",
        "streaming_loops:checked_shards",
        subject="`WebDataset` with `split_by_node`, with fewer shards than ranks and workers",
        what="a rank or worker without a shard raises `ValueError`, and the others wait",
        promise="the error says that `empty_check=False` turns it off, with which the loop is "
        "sound",
    ),
]

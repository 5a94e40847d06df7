"""What datasets does."""

from __future__ import annotations

from suites.findings.table import of_loop

_MAIN = "https://huggingface.co/docs/datasets/package_reference/main_classes"
_BY_NODE = (
    f"[each example is assigned to one node]({_MAIN}#datasets.distributed.split_dataset_by_node)"
)

FINDINGS = [
    of_loop(
        "datasets-split-by-node",
        "datasets_loops:map_style",
        subject="`split_dataset_by_node` of a data set with a length",
        what="rank 1 raises `IndexError: Index 1 out of range for dataset of size 1`",
        promise="a note on `Dataset.shard`, which it calls, says that there should be no more "
        "shards than samples",
    ),
    of_loop(
        "datasets-take-of-uneven-shards",
        "datasets_loops:first_of_uneven_shards",
        subject="a share of `take` of as many samples as there are, of shards of unequal length",
        what="the number of samples is divided by that of the ranks, and a rank whose shard is "
        "short leaves the rest out",
        promise=f'["only the first `n` elements"]({_MAIN}#datasets.IterableDataset.take)',
    ),
    of_loop(
        "datasets-interleaved-streams",
        "datasets_loops:streams_interleaved",
        release="4.5.0",
        subject="a share of a stream in `interleave_datasets`",
        what="every rank gets the whole stream",
        promise=_BY_NODE,
        later="right in 5.2.0",
    ),
    of_loop(
        "datasets-skipped-stream",
        "datasets_loops:stream_skipped",
        release="5.0.1",
        subject="`skip` of a share of a stream",
        what="every rank gets the whole stream",
        promise=_BY_NODE,
        later="right in 5.2.0",
    ),
]

"""What accelerate does."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_DOCS = "https://huggingface.co/docs/accelerate/package_reference/utilities"
_SOURCE = (
    "https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/operations.py"
)

_PAGE = "https://huggingface.co/docs/accelerate/package_reference/accelerator"
_GATHER = (
    f"[`gather_for_metrics`]({_PAGE}#accelerate.Accelerator.gather_for_metrics) potentially drops "
    "duplicates in the last batch"
)

FINDINGS = [
    of_loop(
        "accelerate-stream-with-length",
        "accelerate_loops:sized_stream",
        subject="a stream with a length, `dispatch_batches=False`, and `gather_for_metrics`",
        what="the count is 2 instead of 1. The repeated samples at the end are not dropped, "
        "because the number of those to keep is computed from the length and the batch size of "
        "one rank's share",
        promise=_GATHER,
    ),
    of_loop(
        "accelerate-dispatched-stream",
        "accelerate_loops:stream_dispatched",
        subject="a stream that rank 0 reads for all",
        what="rank 2 gets no sample and divides by 0, and the others wait in `all_gather`. The "
        "first batch is appended once to fill up the last one, which is too little for three "
        "ranks",
        promise="`even_batches`: samples of the beginning are duplicated so that every process "
        "has as many",
    ),
    of_loop(
        "accelerate-skip-first-batches",
        "accelerate_loops:skipped_first_batch",
        subject="one batch, the others from `skip_first_batches`, and `gather_for_metrics`",
        what="the number of ids is 4 instead of 3. The loader that `skip_first_batches` makes does "
        "not know its batch size, so the repeated samples at the end are not dropped",
        promise=_GATHER,
    ),
    of_loop(
        "accelerate-skip-dispatched-batches",
        "accelerate_loops:skipped_first_batch_dispatched",
        subject="one batch, the others from `skip_first_batches`, `dispatch_batches=True`",
        what="one batch is skipped of those that rank 0 reads, instead of one for each rank",
        promise="[the first `num_batches` are skipped]"
        f"({_PAGE}#accelerate.Accelerator.skip_first_batches)",
    ),
    of_loop(
        "accelerate-shards-of-datasets",
        "accelerate_loops:datasets_stream_of_two_shards",
        subject="a stream of datasets with two shards, `dispatch_batches=False`",
        what="the shards are dealt to the ranks, and unequally many batches are not evened out, so "
        "a rank gathers alone",
        promise="[`even_batches`, on by default: samples are repeated so that every process has "
        f"as many]({_DOCS}#accelerate.utils.DataLoaderConfiguration)",
    ),
    of_loop(
        "accelerate-reduce-none",
        "accelerate_loops:unreduced_sums",
        subject='`reduce(..., reduction="none")`',
        what="the count is 2 instead of 1, for the sum over the ranks is returned",
        promise="no operation is performed then, says the "
        "[reference](https://huggingface.co/docs/accelerate/package_reference/accelerator)",
    ),
    of_loop(
        "accelerate-stream-without-length",
        "accelerate_loops:stream",
        "accelerate_loops:stream_split_batches",
        subject="a stream without a length, `dispatch_batches=False`",
        what="the count is 2 instead of 1",
        promise="a log message of level INFO",
    ),
    of_loop(
        "accelerate-reduce",
        "accelerate_loops:reduced_sums",
        subject="sums over a prepared loader, and `reduce`",
        what="the count is 2 instead of 1",
        promise="`prepare` repeats samples, and `gather_for_metrics` is there to drop them; or set "
        "`even_batches=False`",
    ),
    of_loop(
        "accelerate-whole-last-batch",
        "accelerate_loops:gathered_ids",
        release="0.15.0",
        subject="`gather_for_metrics` of ids",
        what="where no sample is repeated, the whole last batch is dropped",
        promise=_GATHER,
        later="right in 1.15.0",
    ),
    of_loop(
        "accelerate-lists-of-integers",
        "accelerate_loops:gathered_objects",
        release="0.22.0",
        subject="`gather_for_metrics` of lists of integers",
        what='"Unsupported types"',
        promise="its documentation takes only tensors",
        later="right in 1.15.0",
    ),
    of_loop(
        "accelerate-split-between-processes",
        "accelerate_loops:split_with_enough_samples",
        release="0.30.1",
        subject="`split_between_processes` where every rank has a sample",
        what="the number of ids is 5 instead of 4",
        promise=f"[`apply_padding`, off by default, repeats the last item]({_PAGE}#accelerate."
        "Accelerator.split_between_processes)",
        later="right in 1.15.0",
    ),
    of_loop(
        "accelerate-split-with-empty-ranks",
        "accelerate_loops:split_between_processes",
        release="1.13.0",
        subject="`split_between_processes` with fewer samples than ranks",
        what="a rank whose share is empty gets the last sample, without being told to pad",
        promise=f"[`apply_padding`, off by default, repeats the last item]({_PAGE}#accelerate."
        "Accelerator.split_between_processes)",
        later="right in 1.15.0",
    ),
    Finding(
        slug="accelerate-gather-object-dict",
        library="accelerate 1.15.0",
        environment="newest",
        command="check suites.findings.adapters_over_torch:AccelerateDict --rules 2.1 "
        "--world-size 2",
        says="rule 2.1, world size 2: broken",
        subject="`gather_object` of a dictionary",
        case='gather `{"loss": 0.5}`',
        what='every rank gets `["loss", "loss"]`: the values are lost, without an error. A text '
        "becomes a list of letters",
        promise='[it takes a "nested list/tuple/dictionary", and returns "the same data '
        f'structure"]({_DOCS})',
        kind="defect",
        thread="https://github.com/huggingface/accelerate/issues/2188",
    ),
    Finding(
        slug="accelerate-pad-bool",
        library="accelerate 1.15.0",
        environment="newest",
        command="check suites.findings.adapters_over_torch:AccelerateBits --rules 2.3 "
        "--world-size 2",
        says="rule 2.3, world size 2: broken",
        subject="`gather` after `pad_across_processes` of booleans",
        case="booleans of two lengths",
        what="the padded ones become int64 and the longest stay booleans, and `gather` kills a "
        "rank by SIGABRT",
        promise=f'[tensors are padded "so they can safely be gathered"]({_DOCS})',
        kind="defect",
        thread="https://github.com/huggingface/accelerate/issues/3218",
    ),
    Finding(
        slug="accelerate-copy-tensor",
        library="accelerate 1.15.0",
        environment="newest",
        command="check suites.findings.adapters_over_torch:AccelerateCopies --rules 3.2 "
        "--world-size 2",
        says="rule 3.2, world size 2: broken",
        subject="`copy_tensor_to_devices`",
        case="a tensor of shape (2, 3) that rank 0 has",
        what="the ranks without it raise `TypeError`, and rank 0 waits in `reduce`: only tensors "
        "with one dimension arrive",
        promise=f'[each worker "doesn\'t need to know its shape"]({_SOURCE})',
        kind="defect",
    ),
    Finding(
        slug="accelerate-drop-last-of-a-batch-sampler",
        library="accelerate 1.15.0",
        environment="newest",
        command="",
        says="",
        subject="`gather_for_metrics` with a batch sampler that has `drop_last=True`",
        case="7 samples in batches of 2",
        what="two processes evaluate samples 0 to 3 and gather 0 to 2, and one process evaluates "
        "0 to 5 and gathers 0 to 4: the last batch is cut to the size of the dropped one",
        promise=_GATHER,
        kind="defect",
        thread="https://github.com/huggingface/accelerate/issues/2007",
    ),
]

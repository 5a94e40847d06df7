"""What sentence-transformers does."""

from __future__ import annotations

from suites.findings.table import of_loop

FINDINGS = [
    of_loop(
        "sentence-transformers-eval-loss",
        "sentence_transformers_loops:eval_loss",
        subject="`eval_loss` of the Trainer where batches do not fill all ranks",
        what="the result has no `eval_loss`: `dataloader_drop_last` is set on several ranks, and "
        "holds for the evaluation, too, so the samples of the last batches do not count; with "
        "fewer samples than a batch for each rank, none does. Of those that are left, "
        "[accelerate drops some](findings/accelerate-drop-last-of-a-batch-sampler.md)",
        promise="a warning says that the argument is set, to avoid that an uneven last batch hangs",
    ),
]

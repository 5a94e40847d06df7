"""What Lightning does."""

from __future__ import annotations

from suites.findings.table import of_loop

_OVERVIEW = "https://lightning.ai/docs/torchmetrics/stable/pages/overview.html"
_MEAN_OF_INTEGERS = "https://github.com/Lightning-AI/pytorch-lightning/pull/18235"

FINDINGS = [
    of_loop(
        "lightning-log-unequal-shares",
        "lightning_loops:log_own_sampler",
        subject="`self.log(..., sync_dist=True)` over shares of unequal length",
        what="sample 0 counts 0.5 instead of 0.333. The number of samples is an integer, of which "
        "the mean over the ranks is taken: 3 / 2 becomes 1. Right in 2.0.6, and wrong since "
        f"[#18235]({_MEAN_OF_INTEGERS})",
        promise="`sync_dist` reduces the value over the devices, by default to the mean",
    ),
    of_loop(
        "lightning-test-repeats-samples",
        "lightning_loops:log",
        "lightning_loops:log_torchmetrics",
        subject="`Trainer.test` with the sampler that it adds",
        what="sample 0 counts 0.667 instead of 0.5",
        promise=f"a warning says so, and torchmetrics' [overview]({_OVERVIEW})",
    ),
    of_loop(
        "lightning-predict-with-empty-ranks",
        "lightning_loops:predict",
        subject="`Trainer.predict` with fewer samples than ranks",
        what="an `AssertionError` without a message on the rank without a sample; [darts "
        "#1385](https://github.com/unit8co/darts/issues/1385) met it",
        promise="the source of its sampler says so",
    ),
    of_loop(
        "lightning-all-reduce-of-integers",
        "lightning_loops:fabric_reduced_counts",
        subject="`Fabric.all_reduce` of counts, of which the ratio is taken",
        what="the mean of integers is cut to an integer, as in `self.log`",
        promise="[`data` may be an int](https://lightning.ai/docs/fabric/stable/api/generated/"
        'lightning.fabric.fabric.Fabric.html), and the result is ["the mean of a tensor across '
        'processes"](https://lightning.ai/docs/fabric/stable/advanced/'
        "distributed_communication.html)",
    ),
]

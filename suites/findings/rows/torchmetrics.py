"""What torchmetrics does."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

FINDINGS = [
    of_loop(
        "torchmetrics-auroc-empty-rank",
        "torchmetrics_loops:auroc",
        subject="`BinaryAUROC` where a rank has no sample",
        what="a rank is killed by SIGABRT. A rank without samples sends an empty float32 tensor in "
        "place of labels, which are int64 on the others",
        promise="a comment in its source says that ranks without data get an empty tensor",
    ),
    of_loop(
        "torchmetrics-cat-of-scalars",
        "torchmetrics_loops:cat_of_scalars",
        subject="`CatMetric` updated with one number at a time, where a rank has no sample",
        what="a rank tries to allocate 285,323,267,407,872 bytes, or is killed. A single number is "
        "sent without a dimension, and ranks with none or several have one, so the ranks call "
        "different collectives",
        promise="[`CatMetric`](https://lightning.ai/docs/torchmetrics/stable/aggregation/cat.html) "
        "takes a single float",
    ),
    of_loop(
        "torchmetrics-pearson-one-sample",
        "torchmetrics_loops:pearson",
        subject="`PearsonCorrCoef` where each rank has one sample",
        what="NaN on two ranks, -1 on one. The largest deviation from the mean is taken from each "
        "rank's own mean, so it is 0 here, and the variance is taken for too small",
        promise="[the result is that of all processes' data](https://lightning.ai/docs/"
        "torchmetrics/stable/pages/overview.html)",
    ),
    of_loop(
        "torchmetrics-retrieval-empty-rank",
        "torchmetrics_loops:retrieval",
        subject="`RetrievalMRR` where a rank has no sample",
        what='rank 1 raises "No samples to concatenate", rank 0 waits in `barrier`',
        promise="a comment in its source says that ranks without data get an empty tensor",
    ),
    of_loop(
        "torchmetrics-distributed-sampler",
        "torchmetrics_loops:distributed_sampler",
        subject="`MeanMetric` over `DistributedSampler`",
        what="sample 0 counts 0.667 instead of 0.5",
    ),
    Finding(
        slug="torchmetrics-retrieval-scores-below-zero",
        library="torchmetrics 1.9.0",
        environment="newest",
        command="python -m suites.findings.scores",
        says="0.5 instead of 1.0",
        subject="`RetrievalRecall`, `RetrievalMRR`, `RetrievalMAP`, `RetrievalPrecision`",
        case="a query with the scores 2, -1, -3, of which the first two documents are relevant: "
        "`RetrievalRecall(top_k=2)`",
        what="0.5 instead of 1.0: a document whose score is 0 or less counts as not retrieved. The "
        "same scores plus 10 give 1.0. Give it scores above 0, or take "
        "`disteval.metrics.Retrieval`, which looks at the order alone",
        promise="intended, and wrong for cosine similarities, logits and log-probabilities",
        kind="documented",
        thread="https://github.com/Lightning-AI/torchmetrics/pull/3104",
    ),
    of_loop(
        "torchmetrics-cat-with-empty-ranks",
        "torchmetrics_loops:cat_of_vectors_with_empty_ranks",
        release="1.3.2",
        subject="`CatMetric` where a rank has no sample",
        what="the rank without a sample does not gather, and the other one waits",
        later="right in 1.9.0",
    ),
]

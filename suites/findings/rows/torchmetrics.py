"""What torchmetrics does."""

from __future__ import annotations

from suites.findings.table import Finding, of_loop

_OVERVIEW = "https://lightning.ai/docs/torchmetrics/stable/pages/overview.html"
_README = "https://github.com/Lightning-AI/torchmetrics#readme"
_SYNCED = (
    f'[the logic of `compute` "is applied to state information from all processes"]({_OVERVIEW})'
)

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
        "torchmetrics-nrmse-three-ranks",
        "torchmetrics_loops:nrmse",
        subject="`NormalizedRootMeanSquaredError` on three ranks or more",
        what="every rank raises `IndexError`: a variable of the loop over the ranks has the name "
        "of the tensor that it reads",
        promise=_SYNCED,
    ),
    of_loop(
        "torchmetrics-exact-match-of-samples",
        "torchmetrics_loops:exact_match_of_samples",
        subject='`MulticlassExactMatch(multidim_average="samplewise")` on two ranks or more',
        what="every rank raises `RuntimeError`, for the mean over the ranks is taken of an integer",
        promise=_SYNCED,
    ),
    of_loop(
        "torchmetrics-chrf-of-sentences",
        "torchmetrics_text_loops:chrf_of_sentences",
        subject="`CHRFScore(return_sentence_level_score=True)` on two ranks or more; so do "
        "`TranslationEditRate` and `ExtendedEditDistance`",
        what="every rank raises `TypeError`: a list of tensors is expected, which is one tensor "
        "after the synchronization",
        promise=_SYNCED,
    ),
    of_loop(
        "torchmetrics-extended-edit-distance",
        "torchmetrics_text_loops:extended_edit_distance",
        subject="`ExtendedEditDistance` where one rank has one sentence and another has several",
        what="a rank is killed: one sentence is sent without a dimension, several are sent as a "
        "vector, so the ranks call different collectives",
        promise=_SYNCED,
    ),
    of_loop(
        "torchmetrics-rouge-uneven-ranks",
        "torchmetrics_text_loops:rouge",
        subject="`ROUGEScore` where ranks have unequally many sentences",
        what="a rank returns a mixture of F1, precision and recall without an error, and the "
        "other waits for it: each sentence is gathered in a call of its own",
        promise=_SYNCED,
    ),
    of_loop(
        "torchmetrics-ssim-of-images",
        "torchmetrics_loops:ssim_of_images",
        subject='`StructuralSimilarityIndexMeasure(reduction="none")` where ranks have unequally '
        "many batches",
        what="a rank is killed: each batch is gathered in a call of its own",
        promise=_SYNCED,
    ),
    of_loop(
        "torchmetrics-psnrb-of-batches",
        "torchmetrics_loops:psnr_with_blocked_effect",
        subject="`PeakSignalNoiseRatioWithBlockedEffect`",
        what="one batch of two images gives another result than two batches: whether there are "
        "blocks is decided for a batch; and the effect is added up over images, of which the "
        "error is a mean",
        promise=f'["automatic accumulation over batches"]({_README})',
    ),
    of_loop(
        "torchmetrics-rates-of-groups",
        "torchmetrics_loops:rates_of_groups",
        subject="`BinaryGroupStatRates` over batches that lack a group",
        what="the samples of a group count for another one; repaired after 1.9.0",
        promise="[`groups` are identifiers from 0 to `num_groups` - 1](https://lightning.ai/docs/"
        "torchmetrics/stable/classification/group_fairness.html); not every batch need have all",
    ),
    of_loop(
        "torchmetrics-r2-empty-rank",
        "torchmetrics_loops:r2_of_two_outputs",
        subject="`R2Score` of several outputs where a rank has no sample",
        what="a rank is killed: its sums are scalars, and those of the others are vectors, so the "
        "ranks call different collectives",
        promise=_SYNCED,
    ),
    of_loop(
        "torchmetrics-compute-groups",
        "torchmetrics_loops:accuracies_of_thresholds",
        subject="`MetricCollection` of the accuracy at two thresholds",
        what="metrics that agree on the first batch are merged, so one threshold is used for both",
        promise='[a dict is for "multiple of the same metric with different parameters"]('
        f"{_OVERVIEW}#metriccollection)",
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
        promise=_SYNCED,
        later="right in 1.9.0",
    ),
]

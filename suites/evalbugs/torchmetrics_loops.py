"""Evaluation loops with torchmetrics, as its users write them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from disteval.audit import Case

from suites.evalbugs.parts import computed, own_loader, padded_loader
from suites.evalbugs.table import older, sound, sound_where, wrong


def _value(batch: Any) -> Any:
    return batch["value"]


def _score(batch: Any) -> Any:
    return batch["value"] / 64


def _binary(batch: Any) -> Any:
    return batch["label"] % 2


def _label(batch: Any) -> Any:
    return batch["label"].float()


def _images(batch: Any) -> Any:
    """Images of 16 by 16 that are dark on the left; the bright part begins at another column."""
    begin = 5 + batch["label"][:, None] % 4  # a block ends at column 8
    row = (torch.arange(16) >= begin) * (0.2 + batch["value"][:, None] / 100)
    return row[:, None, None].expand(-1, 1, 16, 16)


@wrong("torchmetrics", "counted twice", "N=2,B=1,W=3")
def distributed_sampler(case: Case) -> Any:
    """``MeanMetric`` over a loader with ``DistributedSampler``."""
    from torchmetrics import MeanMetric

    return {"mean": computed(MeanMetric(), padded_loader(case), _value)}


@sound("torchmetrics")
def sums(case: Case) -> Any:
    """``MeanMetric`` over shares of unequal length, of which some may be empty."""
    from torchmetrics import MeanMetric

    return {"mean": computed(MeanMetric(), own_loader(case), _value)}


@sound("torchmetrics")
def accuracy(case: Case) -> Any:
    """``MulticlassAccuracy`` over shares of unequal length, of which some may be empty."""
    from torchmetrics.classification import MulticlassAccuracy

    metric = MulticlassAccuracy(num_classes=16, average="micro")
    found = computed(metric, own_loader(case), lambda b: case.predict(b["x"]), lambda b: b["label"])
    return {"accuracy": found}


@wrong("torchmetrics", "crashes", "N=1,B=1,W=2")
def cat_of_scalars(case: Case) -> Any:
    """``CatMetric`` that is updated with one number at a time, unevenly often on the ranks."""
    from torchmetrics import CatMetric

    metric = CatMetric()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in own_loader(case):
            for value in batch["value"]:
                metric.update(value)
        return {"sum": metric.compute().sum()}


@sound("torchmetrics", assumes=("nonempty",))
def cat_of_vectors(case: Case) -> Any:
    """``CatMetric`` that is updated with vectors, where every rank has a sample."""
    from torchmetrics import CatMetric

    return {"sum": computed(CatMetric(), own_loader(case), _value).sum()}


@older("1.3.2", "crashes", "N=1,B=1,W=2")
@sound("torchmetrics")
def cat_of_vectors_with_empty_ranks(case: Case) -> Any:
    """``CatMetric`` that is updated with vectors, where a rank may have no samples."""
    return cat_of_vectors(case)


@wrong("torchmetrics", "crashes", "N=1,B=1,W=2")
def auroc(case: Case) -> Any:
    """``BinaryAUROC`` where a rank may have no samples."""
    from torchmetrics.classification import BinaryAUROC

    return {"auroc": computed(BinaryAUROC(), own_loader(case), _score, _binary)}


auroc_with_enough_samples = sound_where("nonempty", "torchmetrics", auroc)


@sound("torchmetrics")
def auroc_with_thresholds(case: Case) -> Any:
    """``BinaryAUROC`` with thresholds, whose state is a table of counts."""
    from torchmetrics.classification import BinaryAUROC

    metric = BinaryAUROC(thresholds=65)
    return {"auroc": computed(metric, own_loader(case), _score, _binary)}


@wrong("torchmetrics", "differs from one rank", "N=2,B=1,W=2")
def pearson(case: Case) -> Any:
    """``PearsonCorrCoef`` where every rank has one sample, and so no deviation of its own."""
    from torchmetrics import PearsonCorrCoef

    metric = PearsonCorrCoef()
    return {"r": computed(metric, own_loader(case), _value, lambda b: b["label"].float())}


@sound("torchmetrics")
def collection(case: Case) -> Any:
    """``MetricCollection`` of two metrics that share their state."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassRecall

    both = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(num_classes=16, average="micro"),
            "recall": MulticlassRecall(num_classes=16, average="macro"),
        }
    )
    return computed(both, own_loader(case), lambda b: case.predict(b["x"]), lambda b: b["label"])


@wrong("torchmetrics", "crashes", "N=1,B=1,W=2")
def retrieval(case: Case) -> Any:
    """``RetrievalMRR``, whose states are lists, over batches of which ranks have unequally many."""
    from torchmetrics.retrieval import RetrievalMRR

    metric = RetrievalMRR()
    return {"mrr": computed(metric, own_loader(case), _score, _binary, lambda b: b["label"] // 4)}


@wrong("torchmetrics", "crashes", "N=3,B=1,W=3", assumes=("nonempty",))
def nrmse(case: Case) -> Any:
    """``NormalizedRootMeanSquaredError`` on three ranks or more."""
    from torchmetrics import NormalizedRootMeanSquaredError

    metric = NormalizedRootMeanSquaredError(normalization="range")
    found = computed(metric, own_loader(case), _label, lambda b: b["value"] + 1)
    return {"nrmse": torch.nan_to_num(found)}  # one sample has no range


@wrong("torchmetrics", "crashes", "N=2,B=1,W=2", assumes=("nonempty",))
def exact_match_of_samples(case: Case) -> Any:
    """``MulticlassExactMatch`` with a result for each sample, on two ranks or more."""
    from torchmetrics.classification import MulticlassExactMatch

    # A process that runs alone has no group, in which this would fail, too.
    alone = {"distributed_available_fn": lambda: case.world_size > 1}
    metric = MulticlassExactMatch(num_classes=16, multidim_average="samplewise", **alone)
    pairs = (
        lambda b: torch.stack([case.predict(b["x"]).argmax(1), b["label"] % 2], 1),
        lambda b: torch.stack([b["label"], b["label"] % 2], 1),
    )
    return {"right": computed(metric, own_loader(case), *pairs).sum()}


@wrong("torchmetrics", "differs from one rank", "N=3,B=1,W=1")
def rates_of_groups(case: Case) -> Any:
    """``BinaryGroupStatRates`` over batches that lack samples of a group."""
    from torchmetrics.classification import BinaryGroupStatRates

    fields = (_score, _binary, lambda b: b["label"] // 8)
    found = computed(BinaryGroupStatRates(num_groups=2), own_loader(case), *fields)
    return {name: torch.nan_to_num(rates) for name, rates in found.items()}


@wrong("torchmetrics", "differs from one rank", "N=2,B=1,W=1")
def psnr_with_blocked_effect(case: Case) -> Any:
    """``PeakSignalNoiseRatioWithBlockedEffect`` of images, of which some have blocks."""
    from torchmetrics.image import PeakSignalNoiseRatioWithBlockedEffect

    metric = PeakSignalNoiseRatioWithBlockedEffect(data_range=1.0)
    return {"psnrb": computed(metric, own_loader(case), _images, lambda b: _images(b) * 0 + 0.5)}


@wrong("torchmetrics", "crashes", "N=3,B=1,W=2", assumes=("nonempty",))
def ssim_of_images(case: Case) -> Any:
    """``StructuralSimilarityIndexMeasure`` of each image, where ranks have unequally many."""
    from torchmetrics.image import StructuralSimilarityIndexMeasure

    metric = StructuralSimilarityIndexMeasure(data_range=1.0, reduction="none")
    return {"ssim": computed(metric, own_loader(case), _images, lambda b: _images(b).flip(3)).sum()}


@wrong("torchmetrics", "crashes", "N=2,B=1,W=3")
def r2_of_two_outputs(case: Case) -> Any:
    """``R2Score`` of a model with two outputs, where a rank has no sample."""
    from torchmetrics import R2Score

    both = lambda name: lambda b: torch.stack([b[name].float(), b["value"]], 1)  # noqa: E731
    if len(case.dataset) < 2:
        return {"r2": 0.0}  # it needs two samples
    found = computed(R2Score(), own_loader(case), both("label"), both("value"))
    return {"r2": torch.nan_to_num(found)}


@wrong("torchmetrics", "differs from one rank", "N=2,B=1,W=1")
def accuracies_of_thresholds(case: Case) -> Any:
    """``MetricCollection`` of the accuracy at two thresholds."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import BinaryAccuracy

    both = {"low": BinaryAccuracy(threshold=0.3), "high": BinaryAccuracy(threshold=0.7)}
    return computed(MetricCollection(both), own_loader(case), _score, _binary)

"""Evaluation loops with torchmetrics, as its users write them."""

from __future__ import annotations

import warnings
from typing import Any

from disteval.audit import Case

from suites.evalbugs.parts import own_loader, padded_loader
from suites.evalbugs.table import older, sound, wrong


def _computed(metric: Any, loader: Any, *fields: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "compute before update", of ranks without samples
        for batch in loader:
            metric.update(*(field(batch) for field in fields))
        return metric.compute()


def _value(batch: Any) -> Any:
    return batch["value"]


def _score(batch: Any) -> Any:
    return batch["value"] / 64


def _binary(batch: Any) -> Any:
    return batch["label"] % 2


@wrong(
    "torchmetrics", "documented", "counted twice", "N=2,B=1,W=3",
    "https://lightning.ai/docs/torchmetrics/stable/pages/overview.html",
)  # fmt: skip
def distributed_sampler(case: Case) -> Any:
    """``MeanMetric`` over a loader with ``DistributedSampler``."""
    from torchmetrics import MeanMetric

    return {"mean": _computed(MeanMetric(), padded_loader(case), _value)}


@sound("torchmetrics")
def sums(case: Case) -> Any:
    """``MeanMetric`` over shares of unequal length, of which some may be empty."""
    from torchmetrics import MeanMetric

    return {"mean": _computed(MeanMetric(), own_loader(case), _value)}


@sound("torchmetrics")
def accuracy(case: Case) -> Any:
    """``MulticlassAccuracy`` over shares of unequal length, of which some may be empty."""
    from torchmetrics.classification import MulticlassAccuracy

    metric = MulticlassAccuracy(num_classes=16, average="micro")
    found = _computed(
        metric, own_loader(case), lambda b: case.predict(b["x"]), lambda b: b["label"]
    )
    return {"accuracy": found}


@wrong("torchmetrics", "defect", "crashes", "N=1,B=1,W=2")
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


@sound("torchmetrics")
def cat_of_vectors(case: Case) -> Any:
    """``CatMetric`` that is updated with vectors, where every rank has a sample."""
    from torchmetrics import CatMetric

    return {"sum": _computed(CatMetric(), own_loader(case), _value).sum()}


cat_of_vectors.assumes = ("nonempty",)  # type: ignore[attr-defined]


@older(
    "1.3.2", "defect", "crashes", "N=1,B=1,W=2",
    "https://github.com/Lightning-AI/torchmetrics/pull/2468",
)  # fmt: skip
@sound("torchmetrics")
def cat_of_vectors_with_empty_ranks(case: Case) -> Any:
    """``CatMetric`` that is updated with vectors, where a rank may have no samples."""
    return cat_of_vectors(case)


@wrong("torchmetrics", "defect", "crashes", "N=1,B=1,W=2")
def auroc(case: Case) -> Any:
    """``BinaryAUROC`` where a rank may have no samples."""
    from torchmetrics.classification import BinaryAUROC

    return {"auroc": _computed(BinaryAUROC(), own_loader(case), _score, _binary)}


@sound("torchmetrics")
def auroc_with_enough_samples(case: Case) -> Any:
    """``BinaryAUROC`` where every rank has a sample."""
    return auroc(case)


auroc_with_enough_samples.assumes = ("nonempty",)  # type: ignore[attr-defined]


@sound("torchmetrics")
def auroc_with_thresholds(case: Case) -> Any:
    """``BinaryAUROC`` with thresholds, whose state is a table of counts."""
    from torchmetrics.classification import BinaryAUROC

    metric = BinaryAUROC(thresholds=65)
    return {"auroc": _computed(metric, own_loader(case), _score, _binary)}


@wrong("torchmetrics", "defect", "differs from one rank", "N=2,B=1,W=2")
def pearson(case: Case) -> Any:
    """``PearsonCorrCoef`` where every rank has one sample, and so no deviation of its own."""
    from torchmetrics import PearsonCorrCoef

    metric = PearsonCorrCoef()
    return {"r": _computed(metric, own_loader(case), _value, lambda b: b["label"].float())}


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
    return _computed(both, own_loader(case), lambda b: case.predict(b["x"]), lambda b: b["label"])


@wrong(
    "torchmetrics", "defect", "crashes", "N=1,B=1,W=2",
    "https://github.com/Lightning-AI/torchmetrics/pull/3503",
)  # fmt: skip
def retrieval(case: Case) -> Any:
    """``RetrievalMRR``, whose states are lists, over batches of which ranks have unequally many."""
    from torchmetrics.retrieval import RetrievalMRR

    metric = RetrievalMRR()
    return {"mrr": _computed(metric, own_loader(case), _score, _binary, lambda b: b["label"] // 4)}

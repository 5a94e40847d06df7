"""Evaluation loops with torchmetrics, as its users write them."""

from __future__ import annotations

from typing import Any

import torch
from disteval.audit import Case

from suites.audit.sound import sound
from suites.audit.sound.parts import computed, own_loader


def value_of(batch: Any) -> Any:
    """Return the values of a batch."""
    return batch["value"]


def score_of(batch: Any) -> Any:
    """Return the values of a batch as scores between 0 and 1."""
    return batch["value"] / 64


def binary_of(batch: Any) -> Any:
    """Return the labels of a batch as two classes."""
    return batch["label"] % 2


def images_of(batch: Any) -> Any:
    """Images of 16 by 16 that are dark on the left; the bright part begins at another column."""
    begin = 5 + batch["label"][:, None] % 4  # a block ends at column 8
    row = (torch.arange(16) >= begin) * (0.2 + batch["value"][:, None] / 100)
    return row[:, None, None].expand(-1, 1, 16, 16)


@sound("torchmetrics")
def sums(case: Case) -> Any:
    """``MeanMetric`` over shares of unequal length, of which some may be empty."""
    from torchmetrics import MeanMetric

    return {"mean": computed(MeanMetric(), own_loader(case), value_of)}


@sound("torchmetrics")
def accuracy(case: Case) -> Any:
    """``MulticlassAccuracy`` over shares of unequal length, of which some may be empty."""
    from torchmetrics.classification import MulticlassAccuracy

    metric = MulticlassAccuracy(num_classes=16, average="micro")
    found = computed(metric, own_loader(case), lambda b: case.predict(b["x"]), lambda b: b["label"])
    return {"accuracy": found}


@sound("torchmetrics", "nonempty")
def cat_of_vectors(case: Case) -> Any:
    """``CatMetric`` that is updated with vectors, where every rank has a sample."""
    from torchmetrics import CatMetric

    return {"sum": computed(CatMetric(), own_loader(case), value_of).sum()}


@sound("torchmetrics")
def cat_of_vectors_with_empty_ranks(case: Case) -> Any:
    """``CatMetric`` that is updated with vectors, where a rank may have no samples."""
    return cat_of_vectors(case)


@sound("torchmetrics", "nonempty")
def auroc_with_enough_samples(case: Case) -> Any:
    """``BinaryAUROC`` where every rank has a sample."""
    from torchmetrics.classification import BinaryAUROC

    return {"auroc": computed(BinaryAUROC(), own_loader(case), score_of, binary_of)}


@sound("torchmetrics")
def auroc_with_thresholds(case: Case) -> Any:
    """``BinaryAUROC`` with thresholds, whose state is a table of counts."""
    from torchmetrics.classification import BinaryAUROC

    metric = BinaryAUROC(thresholds=65)
    return {"auroc": computed(metric, own_loader(case), score_of, binary_of)}


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

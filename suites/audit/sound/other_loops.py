"""Evaluation loops with mmengine, torcheval, evaluate, MONAI and plain torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case

from suites.audit.sound import sound
from suites.audit.sound.parts import own_loader, padded_loader


@sound("mmengine-lite")
def mmengine_evaluator(case: Case) -> Any:
    """The evaluator over ``DistributedSampler``; it is told the number of samples."""
    from mmengine.evaluator import BaseMetric, Evaluator

    class Right(BaseMetric):  # type: ignore[misc]
        def process(self, data_batch: Any, data_samples: Any) -> None:
            self.results.extend(int(sample["right"]) for sample in data_samples)

        def compute_metrics(self, results: list[int]) -> dict[str, float]:
            return {"accuracy": sum(results) / len(results), "count": len(results)}

    evaluator = Evaluator(Right())
    for batch in padded_loader(case):
        right = case.predict(batch["x"]).argmax(dim=1) == batch["label"]
        evaluator.process([{"right": each} for each in right], batch)
    return evaluator.evaluate(len(case.dataset))


def synced(metric: Any, case: Case) -> Any:
    """Return what a metric of torcheval makes of the values, on the rank that gets it."""
    from torcheval.metrics.toolkit import sync_and_compute

    for batch in own_loader(case):
        metric.update(batch["value"])
    return sync_and_compute(metric)


@sound("torcheval")
def torcheval_mean(case: Case) -> Any:
    """``Mean`` and ``sync_and_compute`` over shares of unequal length."""
    from torcheval.metrics import Mean

    found = synced(Mean(), case)
    return None if found is None else {"mean": found}


@sound("torcheval")
def torcheval_cat(case: Case) -> Any:
    """``Cat``, which gathers every value, and ``sync_and_compute``."""
    from torcheval.metrics import Cat

    found = synced(Cat(), case)
    return None if found is None else {"sum": found.sum(), "count": len(found)}


@sound("torcheval")
def torcheval_auroc(case: Case) -> Any:
    """``BinaryAUROC``, which keeps lists, and ``sync_and_compute``."""
    from torcheval.metrics import BinaryAUROC
    from torcheval.metrics.toolkit import sync_and_compute

    metric = BinaryAUROC()
    for batch in own_loader(case):
        metric.update(batch["value"] / 64, batch["label"] % 2)
    found = sync_and_compute(metric)
    return None if found is None else {"auroc": found}


@sound("monai", "nonempty")
def monai_average_with_enough_samples(case: Case) -> Any:
    """``CumulativeAverage`` where every rank has a sample."""
    from monai.metrics import CumulativeAverage

    average = CumulativeAverage()
    for batch in own_loader(case):
        average.append(batch["value"].mean(), count=len(batch["value"]))
    return {"mean": float(average.aggregate())}


@sound("torch")
def torch_own_share(case: Case) -> Any:
    """Shares that repeat nothing, sums of each rank, and ``all_reduce``."""
    sums = torch.zeros(2)
    for batch in own_loader(case):
        sums += torch.stack([batch["value"].sum(), torch.tensor(float(len(batch["value"])))])
    dist.all_reduce(sums)
    return {"mean": sums[0] / sums[1], "count": int(sums[1])}

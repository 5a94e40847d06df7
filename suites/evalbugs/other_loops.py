"""Evaluation loops with mmengine, torcheval, evaluate, MONAI and plain torch."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case
from torch.utils.data import DataLoader

from suites.evalbugs.parts import all_ids, own_loader, padded_loader
from suites.evalbugs.table import sound, sound_where, wrong


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


@sound("torcheval")
def torcheval_mean(case: Case) -> Any:
    """``Mean`` and ``sync_and_compute`` over shares of unequal length."""
    from torcheval.metrics import Mean
    from torcheval.metrics.toolkit import sync_and_compute

    metric = Mean()
    for batch in own_loader(case):
        metric.update(batch["value"])
    found = sync_and_compute(metric)
    return None if found is None else {"mean": found}


@sound("torcheval")
def torcheval_cat(case: Case) -> Any:
    """``Cat``, which gathers every value, and ``sync_and_compute``."""
    from torcheval.metrics import Cat
    from torcheval.metrics.toolkit import sync_and_compute

    metric = Cat()
    for batch in own_loader(case):
        metric.update(batch["value"])
    found = sync_and_compute(metric)
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


@wrong("torcheval", "crashes", "N=1,B=1,W=2")
def torcheval_two_outputs(case: Case) -> Any:
    """``MeanSquaredError`` of a model with two outputs, where a rank has no sample."""
    from torcheval.metrics import MeanSquaredError
    from torcheval.metrics.toolkit import sync_and_compute

    metric = MeanSquaredError()
    for batch in own_loader(case):
        wanted = torch.stack([batch["value"], batch["label"].float()], 1)
        metric.update(torch.zeros_like(wanted), wanted)
    return {"error": sync_and_compute(metric)}


@wrong("evaluate", "crashes", "N=1,B=1,W=2")
def evaluate_metric(case: Case) -> Any:
    """A metric of ``evaluate`` that gathers by files, where a rank has no sample."""
    import datasets
    import evaluate

    class Right(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            names = {name: datasets.Value("int64") for name in ("predictions", "references")}
            return evaluate.MetricInfo("", "", datasets.Features(names))

        def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
            right = [a == b for a, b in zip(predictions, references, strict=True)]
            return {"accuracy": sum(right) / len(right), "count": len(right)}

    folder = [tempfile.mkdtemp() if case.rank == 0 else ""]
    dist.broadcast_object_list(folder)
    try:
        metric = Right("", False, folder[0], case.world_size, case.rank, timeout=5)
        for batch in own_loader(case):
            found = case.predict(batch["x"]).argmax(dim=1)
            metric.add_batch(predictions=found.tolist(), references=batch["label"].tolist())
        return metric.compute()
    finally:
        if case.rank == 0:
            shutil.rmtree(folder[0], ignore_errors=True)


@wrong("monai", "hangs", "N=1,B=1,W=2")
def monai_average(case: Case) -> Any:
    """``CumulativeAverage`` where a rank may have no samples."""
    from monai.metrics import CumulativeAverage

    average = CumulativeAverage()
    for batch in own_loader(case):
        average.append(batch["value"].mean(), count=len(batch["value"]))
    return {"mean": float(average.aggregate())}


monai_average_with_enough_samples = sound_where("nonempty", "monai", monai_average)


@wrong("torch", "dropped", "N=1,B=1,W=2")
def torch_drop_last(case: Case) -> Any:
    """``DistributedSampler(drop_last=True)``, which drops the tail."""
    loader = padded_loader(case, drop_last=True)
    return {"ids": all_ids(case, [i for batch in loader for i in batch["id"]])}


@wrong("torch", "counted twice", "N=5,B=2,W=1,workers=2")
def torch_stream_of_every_worker(case: Case) -> Any:
    """A stream through a loader with workers, each of which reads all of it."""
    stream = case.stream()
    loader = DataLoader(stream, batch_size=case.batch_size, num_workers=case.num_workers)
    ids = [int(i) for batch in loader for i in batch["id"]]
    return {"ids": ids} if case.rank == 0 else None


@wrong("torch", "counted twice", "N=2,B=1,W=3")
def torch_distributed_sampler(case: Case) -> Any:
    """``DistributedSampler``, sums of each rank, and ``all_reduce``."""
    sums = torch.zeros(2)
    for batch in padded_loader(case):
        sums += torch.stack([batch["value"].sum(), torch.tensor(float(len(batch["value"])))])
    dist.all_reduce(sums)
    return {"mean": sums[0] / sums[1]}


@sound("torch")
def torch_own_share(case: Case) -> Any:
    """Shares that repeat nothing, sums of each rank, and ``all_reduce``."""
    sums = torch.zeros(2)
    for batch in own_loader(case):
        sums += torch.stack([batch["value"].sum(), torch.tensor(float(len(batch["value"])))])
    dist.all_reduce(sums)
    return {"mean": sums[0] / sums[1], "count": int(sums[1])}

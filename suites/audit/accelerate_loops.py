"""Evaluation loops with accelerate and torchmetrics, wrong ones and right ones."""

from __future__ import annotations

from typing import Any

import torch
from disteval.audit import Case
from torch.utils.data import DataLoader, DistributedSampler

WRONG = {
    "sums_of_prepared_batches": ("counted twice", "N=1,B=1,W=2"),
    "mean_of_losses": ("weighted wrongly", "N=3,B=2,W=2"),
    "torchmetrics_with_padding": ("counted twice", "N=3,B=1,W=2"),
}
"""The kind and the case of each wrong loop's first finding."""


def _accelerator(**settings: Any) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))


def _prepared(case: Case, **settings: Any) -> tuple[Any, Any]:
    accelerator = _accelerator(**settings)
    return accelerator, accelerator.prepare(DataLoader(case.dataset, batch_size=case.batch_size))


def even_batches_off(case: Case) -> Any:
    """Return sums over shards that nothing was added to; right."""
    accelerator, loader = _prepared(case, even_batches=False)
    seen = sum(len(batch["id"]) for batch in loader)
    return {"count": int(accelerator.reduce(torch.tensor(seen)))}


def sums_of_prepared_batches(case: Case) -> Any:
    """Return sums over shards with repeated samples; wrong."""
    accelerator, loader = _prepared(case)
    seen = sum(len(batch["id"]) for batch in loader)
    return {"count": int(accelerator.reduce(torch.tensor(seen)))}


def mean_of_losses(case: Case) -> Any:
    """Return the mean of the batches' means, gathered for metrics; wrong."""
    accelerator, loader = _prepared(case, even_batches=False)
    means = [float(batch["value"].mean()) for batch in loader]
    total = accelerator.reduce(torch.tensor([sum(means), float(len(means))]))
    return {"mean": total[0] / total[1]}


def torchmetrics_with_padding(case: Case) -> Any:
    """Return torchmetrics' mean over a sampler that repeats samples; wrong."""
    from torchmetrics import MeanMetric

    sampler: Any = DistributedSampler(case.dataset, case.world_size, case.rank, shuffle=False)
    metric = MeanMetric()
    for batch in DataLoader(case.dataset, batch_size=case.batch_size, sampler=sampler):
        metric.update(batch["value"])
    return {"mean": metric.compute()}


def objects_gathered_in_each_batch(case: Case) -> Any:
    """Gather objects after each batch, of which a rank may have none; wrong."""
    from accelerate.utils import gather_object

    _, loader = _prepared(case, even_batches=False)
    ids = [gather_object(batch["id"].tolist()) for batch in loader]
    return {"ids": ids[-1]}


def torchmetrics_of_ranks_with_samples(case: Case) -> Any:
    """Compute torchmetrics' mean after a division that fails without samples; wrong."""
    from torchmetrics import MeanMetric

    metric = MeanMetric()
    own = range(case.rank, len(case.dataset), case.world_size)
    for at in own:
        metric.update(case.dataset[at]["value"])
    share = len(case.dataset) / len(own)
    return {"mean": metric.compute(), "share": share}

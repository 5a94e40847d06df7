"""What several loops of the corpus share."""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist
from disteval.audit import Case
from torch.utils.data import DataLoader, DistributedSampler


def own_loader(case: Case) -> Any:
    """Return a loader over every W-th sample, of which ranks may have unequally many."""
    own = list(range(case.rank, len(case.dataset), case.world_size))
    return DataLoader(
        case.dataset, batch_size=case.batch_size, sampler=own, num_workers=case.num_workers
    )


def padded_loader(case: Case, **settings: Any) -> Any:
    """Return a loader over the samples of ``DistributedSampler``, which repeats some by default."""
    sampler: Any = DistributedSampler(
        case.dataset, case.world_size, case.rank, shuffle=False, **settings
    )
    return DataLoader(
        case.dataset, batch_size=case.batch_size, sampler=sampler, num_workers=case.num_workers
    )


def all_ids(case: Case, own: Any) -> list[int]:
    """Return the ids of all ranks, rank by rank."""
    parts: list[Any] = [None] * case.world_size
    dist.all_gather_object(parts, [int(i) for i in own])
    return [i for part in parts for i in part]


def computed(metric: Any, loader: Any, *fields: Any) -> Any:
    """Return a metric of torchmetrics over a loader; the fields take its arguments from a batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "compute before update", of ranks without samples
        for batch in loader:
            metric.update(*(field(batch) for field in fields))
        return metric.compute()

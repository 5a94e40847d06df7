"""Functions for the audit whose ranks part in torch.distributed where one has fewer samples."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case


def _totals(case: Case) -> torch.Tensor:
    own = range(case.rank, len(case.dataset), case.world_size)
    right = sum(case.dataset[at]["label"] == case.dataset[at]["x"][0] for at in own)
    total = torch.tensor([float(right), float(len(own))], dtype=torch.float64)
    dist.all_reduce(total)
    return total


def calls_another(case: Case) -> Any:
    """Rank 1 calls all_reduce where the others call all_gather, with two samples on three ranks."""
    total = _totals(case)
    if case.rank == 1 and case.world_size == 3:
        dist.all_reduce(total.clone())
    else:
        dist.all_gather([total.clone() for _ in range(case.world_size)], total)
    return {"count": int(total[1])}


def skips_one(case: Case) -> Any:
    """Rank 1 skips a broadcast."""
    total = _totals(case)
    if case.rank != 1:
        dist.broadcast(total, 0)
    dist.all_reduce(total.clone())
    return {"count": int(total[1])}


def sends_more(case: Case) -> Any:
    """Rank 1 gives an element more than the others."""
    total = _totals(case)
    dist.all_reduce(torch.zeros(2 + (case.rank == 1), dtype=torch.float64))
    return {"count": int(total[1])}

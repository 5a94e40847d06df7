"""Loops of three gloo ranks, of which rank 1 ends in one way each or makes another call."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from disteval.audit import Case


def is_killed(case: Case) -> Any:
    """Rank 1 is killed, so that the others can't reach it."""
    if case.rank == 1:
        os.kill(os.getpid(), signal.SIGABRT)
    dist.all_reduce(torch.ones(1))


def raises(case: Case) -> Any:
    """Rank 1 raises and rank 2 returns, while rank 0 begins a group with both."""
    if case.rank == 1:
        raise ValueError("no samples")
    if case.rank == 0:
        dist.new_group()


def gathers(case: Case) -> Any:
    """Rank 1 raises while the others gather objects, which consists of other collectives."""
    if case.rank == 1:
        raise ValueError("no samples")
    dist.all_gather_object([None] * case.world_size, case.rank)


def sleeps(case: Case) -> Any:
    """Rank 1 is in a function of its own while the others wait for it."""
    if case.rank == 1:
        nap()
    dist.all_reduce(torch.ones(1))


def nap() -> None:
    """Wait for longer than any test."""
    time.sleep(600)


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

"""Loops of three gloo ranks, of which rank 1 ends in one way each and the others wait for it."""

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

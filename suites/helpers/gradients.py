"""When torch averages the gradients of a model over the ranks."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def averages_of(model: Any) -> list[int]:
    """Return a list that grows by an entry whenever gradients of a distributed model are averaged.

    Args:
        model: What `disteval.estimator.distribute` returned.
    """
    averaged: list[int] = []

    # A function with annotations would have to have those of torch.
    model._parallel[0].register_comm_hook(
        None, lambda _, bucket: averaged.append(bucket.index()) or allreduce_hook(None, bucket)
    )
    return averaged

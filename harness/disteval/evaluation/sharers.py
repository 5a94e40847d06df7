"""The ranks that share the weights of a model of torch, and so have to call it together."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from disteval.contract import BaseDistBackend
from disteval.data.plan import Indices
from disteval.identity import is_whole


def meet(backend: BaseDistBackend) -> dict[str, str]:
    """Return the variables by which a launcher would tell of torch's default process group.

    The ranks that hold a lease of ``disteval eval --ranks-per-lease`` together join one here; those
    of a backend of torch have done so.
    """
    group: Any = getattr(backend, "group", None)  # which only the ranks of disteval eval have
    has_others = group is not None and group.size > 1
    rank, size, device = 0, 1, 0
    if "torch" in sys.modules or has_others:
        from torch import cuda, distributed

        device = backend.rank % max(cuda.device_count(), 1)
        if has_others and not distributed.is_initialized():
            if cuda.is_available():
                cuda.set_device(device)
            where = f"file://{group.path}/store"
            distributed.init_process_group(
                init_method=where, rank=group.rank, world_size=group.size
            )
        if distributed.is_available() and distributed.is_initialized():
            rank, size = distributed.get_rank(), distributed.get_world_size()
    return {"RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{device}"}


class Sharers:
    """The ranks that share the weights of a model, each of which evaluates the batches of all.

    So each call of the model has the same inputs on all of them, as tensor parallelism needs it,
    and however often a batch calls the model, they call it equally often.

    Args:
        model: The model; ranks share none whose weights each of them has whole.

    Attributes:
        are_many: Whether ranks share the weights.
    """

    def __init__(self, model: Any) -> None:
        self.are_many = not is_whole(model)
        self._group: Any = None  # all ranks
        if self.are_many:
            from torch import distributed

            meshes = [each.device_mesh for each in model.parameters() if hasattr(each, "to_local")]
            every: list[list[int]] = [each.mesh.flatten().tolist() for each in meshes]
            ranks = max(every, key=len, default=[])
            if 0 < len(ranks) < distributed.get_world_size():
                self._group = distributed.new_group(ranks, use_local_synchronization=True)

    def batches(self, ids: Indices) -> list[Indices]:
        """Return the samples of each batch that one of them has, in the same order on all."""
        if not self.are_many:
            return [ids]
        from torch import distributed

        found: list[Any] = [None] * distributed.get_world_size(self._group)
        distributed.all_gather_object(found, tuple(ids.tolist()), group=self._group)
        return [np.array(each, np.int64) for each in dict.fromkeys(found)]

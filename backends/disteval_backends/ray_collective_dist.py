"""Ray's collectives between actors: ray.util.collective over gloo."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from disteval.contract import Rendezvous
from disteval.extras import when_used
from disteval.templates import Collectives

from disteval_backends._host_arrays import Bytes, HostArrayDist
from disteval_backends.torch_dist import TorchCPUDist  # Ray's gloo is torch's

if TYPE_CHECKING:
    from ray.util import collective
else:  # a leader reads this class, and its ranks use it
    collective = when_used("ray.util.collective")

_collectives: weakref.WeakKeyDictionary[Any, Collectives] = weakref.WeakKeyDictionary()
"""The collectives of each group."""


class RayCollectiveDist(HostArrayDist):
    """Object collectives over uint8 arrays in host memory, one Ray actor a rank.

    Args:
        group_name: The name of a gloo group of your own, which this actor has initialised.
    """

    library: ClassVar[str] = "ray"
    launcher: ClassVar[str] = "ray"
    preload: ClassVar[tuple[str, ...]] = (*TorchCPUDist.preload, "ray.util.collective")

    def __init__(self, group_name: str = "default") -> None:
        self._group_name = group_name

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        """Join the group ``default``, over a process group of torch that meets at ``rendezvous``.

        Without that process group, Ray's ranks would meet under a name that all jobs of the cluster
        share, at a port that listens on every address, and wait 30 minutes for each other.
        """
        TorchCPUDist.init_process(rank, world_size, rendezvous)
        collective.init_collective_group(world_size, rank, "gloo")

    @classmethod
    def finalize_process(cls) -> None:
        """Leave the group, and torch's process group with it."""
        if collective.is_group_initialized("default"):
            collective.destroy_collective_group()
        TorchCPUDist.finalize_process()

    @property
    def is_initialized(self) -> bool:
        """Whether this actor has initialised the group."""
        return bool(collective.is_group_initialized(self._group_name))

    @property
    def rank(self) -> int:
        """The rank in the group; 0 when there is none."""
        return int(collective.get_rank(self._group_name)) if self.is_initialized else 0

    @property
    def world_size(self) -> int:
        """The group's size; 1 when there is none."""
        if not self.is_initialized:
            return 1
        return int(collective.get_collective_group_size(self._group_name))

    @property
    def _collectives(self) -> Collectives:
        group = collective.get_group_handle(self._group_name)
        return _collectives.get(group) or _collectives.setdefault(group, Collectives())

    def _all_gather_tensor(self, tensor: Bytes) -> Sequence[Bytes]:
        gathered = [np.empty_like(tensor) for _ in range(self.world_size)]
        collective.allgather(gathered, tensor, self._group_name)
        return gathered

    def _broadcast_tensor(self, tensor: Bytes, src: int) -> Bytes:
        collective.broadcast(tensor, src, self._group_name)
        return tensor

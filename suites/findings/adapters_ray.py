"""Thin adapters over ray.util.collective as its users start it, without our backend's group."""

from __future__ import annotations

from disteval.contract import Rendezvous
from disteval_backends.ray_collective_dist import RayCollectiveDist
from ray.util import collective


class RayTimed(RayCollectiveDist):
    """Joins with the timeout of the rendezvous as ``gloo_timeout``."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        milliseconds = int(rendezvous.timeout * 1000)
        collective.init_collective_group(world_size, rank, "gloo", gloo_timeout=milliseconds)


class RaySecond(RayCollectiveDist):
    """Joins a group in which the ranks count from the other end, and then the one that it uses."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        collective.init_collective_group(world_size, world_size - 1 - rank, "gloo", "first")
        collective.init_collective_group(world_size, rank, "gloo")

"""The placement group that holds the ranks of a world on the nodes of a Ray cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from disteval.errors import UsageError, WorldError
from disteval.world.ray import cluster

_STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
_FINEST = 1e-4  # Ray counts CPUs no finer
_SLICE_SECONDS = 0.5


class Room:
    """A placement group with one bundle a rank; see `RayLauncher` for its arguments."""

    def __init__(self, cpus: float | None, strategy: str, patience: float) -> None:
        if cpus is not None and cpus < _FINEST:
            raise UsageError(f"cpus_per_worker={cpus} is too little; use {_FINEST} or more")
        if strategy not in _STRATEGIES:
            raise UsageError(
                f"there is no placement strategy {strategy!r}; Ray's are: {', '.join(_STRATEGIES)}"
            )
        self.cpus = cpus
        self._strategy = strategy
        self._patience = patience
        self._bundle: dict[str, float] = {}
        self._group: Any = None

    def reserve(self, world_size: int, gpus: float) -> list[dict[str, Any]]:
        """Wait until the cluster has room for that many ranks with that many GPUs each.

        Returns:
            The node of each rank, as Ray describes it.

        Raises:
            WorldError: The cluster has no room in time; says what was asked for and what it has.
        """
        ray = cluster.import_ray()
        sizes = self.share(world_size, gpus)
        # An existing cluster may be about to grow; one that was started here is not.
        if cluster.started_here() and self._ranks_on(sizes[0]) < world_size:
            raise self._too_small(ray, world_size, "")
        self._group = ray.util.placement_group([self._bundle] * world_size, self._strategy)
        deadline = time.monotonic() + self._patience
        while not self._group.wait(_SLICE_SECONDS):  # short, for Ctrl-C to get through
            if time.monotonic() > deadline:
                raise self._too_small(ray, world_size, f" within {self._patience:g} s")
        placed = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        nodes = {node["NodeID"]: node for node in _alive(ray)}
        return [nodes[placed[rank]] for rank in range(world_size)]

    def share(self, world_size: int, gpus: float) -> list[dict[str, float]]:
        """Decide what each rank reserves, and return the sizes of the nodes."""
        sizes = [_size(node) for node in _alive(cluster.import_ray())]
        cpus = self.cpus or share_of_cpu([size["CPU"] for size in sizes], world_size)
        self._bundle = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
        return sizes

    def options(self, rank: int) -> dict[str, Any]:
        """Return the options of the actor that is that rank, in the placement group if any."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = self._group
        return {
            "num_cpus": self._bundle["CPU"],
            "num_gpus": self._bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, rank)
            if group is not None
            else "SPREAD",
        }

    def release(self) -> None:
        """Remove the placement group; Ray ends the actors that are still in it."""
        group, self._group = self._group, None
        if group is not None:
            cluster.import_ray().util.remove_placement_group(group)

    def _ranks_on(self, size: dict[str, float]) -> int:
        """Return how many ranks fit on a node that nobody else uses."""
        if self._strategy == "STRICT_SPREAD":
            return int(all(size[kind] >= each for kind, each in self._bundle.items()))
        return min(int(size[kind] / each + _FINEST) for kind, each in self._bundle.items())

    def _too_small(self, ray: Any, world_size: int, when: str) -> WorldError:
        sizes = [_size(node) for node in _alive(ray)]
        has = [
            f"{_count(sum(size[kind] for size in sizes), kind)}, "
            f"{ray.available_resources().get(kind, 0):g} of them free, "
            f"{max(size[kind] for size in sizes):g} on one node"
            for kind in self._bundle
        ]
        ranks, nodes = _count(world_size, "rank"), _count(len(sizes), "node")
        each = " and ".join(_count(amount, kind) for kind, amount in self._bundle.items())
        return WorldError(
            f"{ranks} with {each} each found no room on this Ray cluster{when} ({self._strategy}). "
            f"It has {nodes} with {'; '.join(has)}. Use fewer ranks, or less of cpus_per_worker or "
            f"gpus_per_worker"
        )


def share_of_cpu(nodes: Sequence[float], parts: int) -> float:
    """Return the largest share of a CPU, up to one, that a cluster can give to each of some ranks.

    Args:
        nodes: CPUs of each node; a rank runs on one node.
        parts: The number of ranks; where no node has a CPU, the share is one.
    """
    if sum(int(cpus) for cpus in nodes) >= parts or not any(nodes):
        return 1.0
    shares = {min(1.0, cpus / ranks) for cpus in nodes for ranks in range(1, parts + 1)} - {0.0}
    held = (s for s in shares if sum(int(cpus / s + _FINEST) for cpus in nodes) >= parts)
    return max(_FINEST, math.floor(max(held) / _FINEST) * _FINEST)


def cluster_cpus() -> list[float]:
    """Return the CPUs of each node of the cluster that this process is in."""
    return [_size(node)["CPU"] for node in _alive(cluster.import_ray())]


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'s' * (number != 1)}"


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _size(node: dict[str, Any]) -> dict[str, float]:
    return {kind: node["Resources"].get(kind, 0.0) for kind in ("CPU", "GPU")}

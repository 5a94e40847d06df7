"""The launcher whose ranks are actors on a Ray cluster, and the code that runs on its nodes.

Ranks on the leader's own node use its control directory, and one on another node has its own.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError, WorldError
from disteval.host import available_cores, thread_variables
from disteval.world.channel.link import Address, read_address
from disteval.world.launchers import Launcher, register_launcher
from disteval.world.postmortem import exit_text
from disteval.world.processes import own_directory
from disteval.world.rank import become_rank
from disteval.world.ray import cluster

_ANSWER_SECONDS = 1.0
_TERMINATE_SECONDS = 10.0
_END_SECONDS = 5.0
_KILL_SECONDS = 1.0
_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.25
_SLICE_SECONDS = 0.5
_STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")


@register_launcher
class RayLauncher(Launcher):
    """Starts every rank as an actor in a placement group of a Ray cluster.

    A launcher serves one world at a time.

    Args:
        address: ``auto`` or ``host:port`` of a cluster of which this is a node. None stands for the
            environment variable ``RAY_ADDRESS``, and without it for a Ray of this machine alone,
            started for the world and ended with it.
        cpus_per_worker: CPUs that each rank reserves, also less than one. None stands for one, or
            for less where the cluster has fewer CPUs than there are ranks.
        gpus_per_worker: GPUs that each rank reserves; it sees no others. None stands for one where
            the backend's objects are always on a GPU, and otherwise for 0.
        strategy: Ray's placement strategy. ``SPREAD`` uses as many nodes as it can.
        patience: Seconds that the cluster gets to make room for the ranks.

    Raises:
        UsageError: An argument is out of its range.
    """

    name = "ray"
    restarts = True

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus_per_worker: float | None = None,
        gpus_per_worker: float | None = None,
        strategy: str = "SPREAD",
        patience: float = 60.0,
    ) -> None:
        self._address = address
        # Whether Ray is started for the world alone.
        self.on_this_host = (address or os.environ.get("RAY_ADDRESS") or "local") == "local"
        if gpus_per_worker is not None and gpus_per_worker < 0:
            raise UsageError(f"gpus_per_worker={gpus_per_worker} is negative; use 0 or more")
        if cpus_per_worker is not None and cpus_per_worker < cluster.FINEST:
            raise UsageError(
                f"cpus_per_worker={cpus_per_worker} is too little; use {cluster.FINEST} or more"
            )
        if strategy not in _STRATEGIES:
            raise UsageError(
                f"there is no placement strategy {strategy!r}; Ray's are: {', '.join(_STRATEGIES)}"
            )
        self._cpus, self._gpus = cpus_per_worker, gpus_per_worker
        self._strategy, self._patience = strategy, patience
        self._reset()

    def _reset(self) -> None:
        self._joined = False
        self._bundle: dict[str, float] = {}  # that each rank reserves
        self._group: Any = None  # the placement group with a bundle for each rank
        self._here = ""  # the leader's node
        self._nodes: list[dict[str, Any]] = []  # each rank's
        self._actors: list[Any] = []
        self._ends: list[Any] = []

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """Refuse a backend whose ranks can't be plain processes."""
        if backend.launcher not in ("local", self.name):
            raise UsageError(
                f"{backend.__name__}'s ranks are started by {backend.launcher!r}, and Ray starts "
                f"plain processes; leave the launcher out, or use another backend"
            )
        if self._gpus is None:
            self._gpus = int(backend.devices == "cuda")

    def prepare(self, world_size: int) -> Address | None:
        """Join the cluster, and wait until it has room for the ranks."""
        cluster.join(self._address)
        self._joined = True
        ray = cluster.import_ray()
        self._here = ray.get_runtime_context().get_node_id()
        [own] = [node for node in ray.nodes() if node["NodeID"] == self._here]
        sizes = [cluster.size_of(node) for node in cluster.alive_nodes(ray)]
        cpus = self._cpus or cluster.share_of_cpu([size["CPU"] for size in sizes], world_size)
        self._bundle = {"CPU": cpus} | ({"GPU": self._gpus} if self._gpus else {})
        if self.elastic:  # ranks may come and go, and are there when Ray has room for them
            self._nodes = [own] * world_size
        else:
            self._reserve(ray, world_size, sizes[0])
        may_grow = self.elastic and not cluster.started_here()
        if all(node["NodeID"] == self._here for node in self._nodes) and not may_grow:
            return None
        return Address(own["NodeManagerAddress"])

    def _reserve(self, ray: Any, world_size: int, first: Mapping[str, float]) -> None:
        """Wait until the cluster has room for all ranks, each on its node.

        Raises:
            WorldError: It has none in time; says what was asked for and what it has.
        """
        if self._strategy == "STRICT_SPREAD":
            fit = int(all(first[kind] >= each for kind, each in self._bundle.items()))
        else:
            fit = min(int(first[k] / each + cluster.FINEST) for k, each in self._bundle.items())
        # An existing cluster may be about to grow; one that was started here is not.
        if cluster.started_here() and fit < world_size:
            raise self._too_small(ray, world_size, "")
        self._group = ray.util.placement_group([self._bundle] * world_size, self._strategy)
        deadline = time.monotonic() + self._patience
        while not self._group.wait(_SLICE_SECONDS):  # short, for Ctrl-C to get through
            if time.monotonic() > deadline:
                raise self._too_small(ray, world_size, f" within {self._patience:g} s")
        placed = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        nodes = {node["NodeID"]: node for node in cluster.alive_nodes(ray)}
        self._nodes = [nodes[placed[rank]] for rank in range(world_size)]

    def _too_small(self, ray: Any, world_size: int, when: str) -> WorldError:
        sizes = [cluster.size_of(node) for node in cluster.alive_nodes(ray)]
        has = [
            f"{cluster.count_of(sum(size[kind] for size in sizes), kind)}, "
            f"{ray.available_resources().get(kind, 0):g} of them free, "
            f"{max(size[kind] for size in sizes):g} on one node"
            for kind in self._bundle
        ]
        ranks = cluster.count_of(world_size, "rank")
        each = " and ".join(cluster.count_of(n, kind) for kind, n in self._bundle.items())
        return WorldError(
            f"{ranks} with {each} each found no room on this Ray cluster{when} ({self._strategy}). "
            f"It has {cluster.count_of(len(sizes), 'node')} with {'; '.join(has)}. Use fewer "
            f"ranks, or less of cpus_per_worker or gpus_per_worker"
        )

    def start(self, directory: Path, world_size: int, threads: int | None) -> list[Connection]:
        """Start the actors; the one call of each lasts as long as the world."""
        ray = cluster.import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        folder = str(Path.cwd())
        path = [entry or folder for entry in sys.path]
        leader = RayLeader(directory, self._here, read_address(directory), folder, path)
        # Ray hides all GPUs from a rank but its own.
        variables = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        if threads is None and (chosen := os.environ.get("OMP_NUM_THREADS")):
            variables["OMP_NUM_THREADS"] = chosen
        else:
            variables |= thread_variables(1, threads or self._threads(world_size))
        options = {
            "num_cpus": self._bundle["CPU"],
            "num_gpus": self._bundle.get("GPU", 0),
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": variables},
        }
        if self.elastic:
            options |= {"max_restarts": -1, "max_task_retries": -1}
        for rank in range(world_size):
            if self._group is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, rank)
            actor = ray.remote(RankActor).options(**options).remote(rank)
            self._actors.append(actor)
            self._ends.append(actor.serve.remote(leader))
        return []

    def _threads(self, world_size: int) -> int:
        if self._cpus is None and cluster.started_here():
            return max(1, available_cores() // world_size)
        return max(1, int(self._cpus or 1))

    def how_ended(self, rank: int, seconds: float = 0.0) -> str:
        """Return how the actor ended according to Ray, or that its node does not answer."""
        ray = cluster.import_ray()
        if rank >= len(self._ends):
            return ""
        how, is_known = "", False
        if ray.wait(self._ends[rank : rank + 1], timeout=seconds)[0]:
            how, is_known = _how_ended(ray, self._ends[rank])
        elif not seconds:
            return ""
        node = {} if is_known else self._node(ray, rank)
        if is_known or _answers(node):
            return how
        return f"its Ray node {node['NodeManagerAddress']} does not answer"

    def _node(self, ray: Any, rank: int) -> dict[str, Any]:
        """Return the node of a rank, which Ray may have started again on another."""
        if self.elastic:
            found = ray._private.state.actors(self._actors[rank]._actor_id.hex())
            on = [each for each in ray.nodes() if each["NodeID"] == found["Address"]["NodeID"]]
            self._nodes[rank : rank + 1] = on or self._nodes[rank : rank + 1]
        return self._nodes[rank]

    def log(self, seconds: float = 0.0) -> str:
        """Return how the actors that have ended did so, as soon as Ray has found that out."""
        cluster.import_ray().wait(self._ends, timeout=seconds)
        found = ((rank, self.how_ended(rank)) for rank in range(len(self._ends)))
        return "\n".join(f"rank {rank}: {how}" for rank, how in found if how)

    def end(self, pids: Mapping[int, int]) -> None:
        """Kill every actor, and remove the placement group."""
        if not self._joined:
            return
        patience = 0.0
        if cluster.import_ray().is_initialized():  # at Python's end it may have been left already
            cluster.bounded(self._terminate_by_ray, _TERMINATE_SECONDS)
            patience = _KILL_SECONDS
        begin = time.monotonic()
        left = [*pids.values()]
        while (left := [*filter(is_rank, left)]) and time.monotonic() < begin + _END_SECONDS:
            # Ray kills them shortly, and would warn of workers that it has not ended itself. But a
            # rank may be stopped, or out of Ray's reach.
            if time.monotonic() >= begin + patience:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        self._reset()
        cluster.leave()

    def _terminate_by_ray(self) -> None:
        ray = cluster.import_ray()
        for actor in self._actors:
            ray.kill(actor)
        group, self._group = self._group, None
        if group is not None:
            ray.util.remove_placement_group(group)  # Ray ends the actors that are still in it


def _answers(node: dict[str, Any]) -> bool:
    """Return whether a node answers; Ray itself takes long to find out that it does not."""
    address = node["NodeManagerAddress"], node["NodeManagerPort"]
    try:
        socket.create_connection(address, _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _how_ended(ray: Any, end: Any) -> tuple[str, bool]:
    """Return how an actor ended in one line, and whether it is not merely out of Ray's reach."""
    try:
        return exit_text(ray.get(end)), True
    except ray.exceptions.RayError as error:
        is_known = not isinstance(error, ray.exceptions.ActorUnavailableError)
        return " ".join(str(error).split()), is_known


@dataclass(frozen=True)
class RayLeader:
    """The description of the leader that each rank gets."""

    directory: Path  # the world's control directory, on the leader's node
    node: str  # that it runs on, by Ray's id
    address: Address
    folder: str  # that it runs in
    path: list[str]  # that it imports from


class RankActor:
    """An actor whose process is one rank of a world."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def serve(self, leader: RayLeader) -> int:
        """Carry out the orders of a leader, which may run on this node; return the exit status."""
        import ray

        sys.path.extend(entry for entry in leader.path if entry not in sys.path)
        if Path(leader.folder).is_dir():
            os.chdir(leader.folder)
        _end_with_node()
        if ray.get_runtime_context().get_node_id() == leader.node:
            return become_rank(leader.directory, self._rank)
        with own_directory() as here:
            return become_rank(here, self._rank, place=leader.address)


def is_rank(pid: int) -> bool:
    """Return whether a process of this node is a rank; another may have its number by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::RankActor")
    except OSError:
        return False


def _end_with_node() -> None:
    """End this process soon after the raylet that has started it, because Ray may not end it."""
    raylet = os.getppid()

    def watch() -> None:
        while os.getppid() == raylet:
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

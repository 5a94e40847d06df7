"""Worlds whose ranks are actors on a Ray cluster."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from disteval.contract import BaseDistBackend
from disteval.errors import UsageError
from disteval.worlds import control, ray_cluster
from disteval.worlds.cores import available_cores, thread_variables
from disteval.worlds.launchers import LOOPBACK, Hosts, Launcher, register_launcher
from disteval.worlds.postmortem import Fate, exit_text
from disteval.worlds.ray_node import (
    Leader,
    RankActor,
    clean_up_here,
    examine_here,
    is_rank,
    kill_rank,
)
from disteval.worlds.ray_room import Room

_ANSWER_SECONDS = 1.0
_EXAMINE_SECONDS = 10.0
_CLEAN_UP_SECONDS = 5.0
_BURY_SECONDS = 10.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.02


@register_launcher
class RayLauncher(Launcher):
    """Every rank is an actor in a placement group of a Ray cluster.

    A launcher serves one world at a time.

    Args:
        address: ``auto`` or ``host:port`` of a cluster of which this is a node. None stands for the
            environment variable ``RAY_ADDRESS``, and without it for a Ray of this machine alone,
            started for the world and ended with it.
        cpus_per_worker: CPUs that each rank reserves, also less than one. None stands for one, or
            less where two such worlds would not fit into the cluster at once: a check of a backend
            loses a second one beside the first.
        gpus_per_worker: GPUs that each rank reserves; it sees no others. None stands for one where
            the backend moves nothing but what is on a GPU, else for none.
        strategy: Ray's placement strategy. ``SPREAD`` puts ranks on as many nodes as it can.
        patience: Seconds that the cluster gets to make room for the ranks.

    Raises:
        UsageError: An argument makes no sense.
    """

    name = "ray"

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
        if gpus_per_worker is not None and gpus_per_worker < 0:
            raise UsageError(f"gpus_per_worker={gpus_per_worker} is negative; use 0 or more")
        self._gpus = gpus_per_worker
        self._room = Room(cpus_per_worker, strategy, patience)
        self._forget()

    def _forget(self) -> None:
        self._joined = False
        self._name = ""  # of the world's directory on other nodes
        self._here = ""  # the leader's node
        self._nodes: list[dict[str, Any]] = []  # each rank's
        self._actors: list[Any] = []
        self._pids: list[Any] = []
        self._ends: list[Any] = []

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """Refuse a second world, and a backend whose ranks can't be plain processes."""
        # Before there is a crew: what could not be prepared is buried, and that is the first world.
        if self._joined:
            raise UsageError("this launcher serves a world already; make another")
        if backend.launcher not in ("local", self.name):
            raise UsageError(
                f"{backend.__name__}'s ranks are started by {backend.launcher!r}, and Ray starts "
                f"plain processes; leave the launcher out, or use another backend"
            )
        if self._gpus is None:
            self._gpus = int(backend.devices == "cuda")

    def thread_variables(self, world_size: int, threads: int | None) -> dict[str, str]:
        """What the user asked for; else `start` gives each rank as many threads as CPUs."""
        if threads is None and "OMP_NUM_THREADS" in os.environ:
            return {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
        return {} if threads is None else thread_variables(1, threads)

    def prepare(self, world_size: int) -> Hosts:
        """Join the cluster, and wait for room on it."""
        ray_cluster.join(self._address)
        self._joined = True
        ray = ray_cluster.import_ray()
        self._here = ray.get_runtime_context().get_node_id()
        self._nodes = self._room.reserve(world_size, self._gpus or 0)
        if all(node["NodeID"] == self._here for node in self._nodes):
            return Hosts(LOOPBACK, [LOOPBACK] * world_size)
        [own] = [node for node in ray.nodes() if node["NodeID"] == self._here]
        addresses = [node["NodeManagerAddress"] for node in self._nodes]
        return Hosts(own["NodeManagerAddress"], addresses, shared=False)

    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> dict[int, Connection]:
        """Start the actors; the one call of each lasts as long as the world."""
        ray = ray_cluster.import_ray()
        self._name = directory.name
        folder = str(Path.cwd())
        path = [entry or folder for entry in sys.path]
        leader = Leader(directory, control.read_address(directory), folder, path)
        # Ray hides all GPUs from a rank but its own.
        variables = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        variables |= environment or thread_variables(1, self._threads(world_size))
        for rank, node in enumerate(self._nodes):
            options = self._room.options(rank) | {"runtime_env": {"env_vars": variables}}
            actor = ray.remote(RankActor).options(**options).remote(rank)
            nearby = node["NodeID"] == self._here
            self._actors.append(actor)
            self._pids.append(actor.pid.remote())
            self._ends.append(actor.serve.remote(leader, nearby))
        return {}

    def _threads(self, world_size: int) -> int:
        if self._room.cpus is None and ray_cluster.started_here():
            return max(1, available_cores() // world_size)
        return max(1, int(self._room.cpus or 1))

    def ended(self) -> dict[int, str]:
        """How the actors that serve no more ended, as Ray tells it."""
        ray = ray_cluster.import_ray()
        ready, _ = ray.wait(self._ends, num_returns=len(self._ends), timeout=0)
        return {self._ends.index(end): _last_words(ray, end) for end in ready}

    def wait(self, seconds: float) -> bool:
        """Wait until every actor serves no more; False when time ran out."""
        count = len(self._ends)
        ray = ray_cluster.import_ray()
        return count == 0 or not ray.wait(self._ends, num_returns=count, timeout=seconds)[1]

    def how_lost(self, rank: int) -> str:
        """Say whether the rank's process ended alone or with its Ray node."""
        node = self._nodes[rank]
        if _answers(node):
            return exit_text(None)
        return f"its Ray node {node['NodeManagerAddress']} does not answer"

    def hear_out(self, seconds: float) -> None:
        """Give Ray the time to find out why an actor is gone."""
        ray_cluster.import_ray().wait(self._ends, timeout=seconds)

    def log(self) -> str:
        """What Ray says of the actors that serve no more."""
        return "\n".join(f"rank {rank}: {words}" for rank, words in self.ended().items())

    def examine(self, directory: Path, fates: Sequence[Fate]) -> None:
        """Look at the ranks of this node, and have the other nodes look at theirs."""
        ray = ray_cluster.import_ray()
        answers = []
        for node in self._other_nodes():
            there = [fate for fate in fates if self._nodes[fate.rank] is node]
            if _answers(node):
                answers.append((there, _on(node, examine_here).remote(self._name, there)))
            else:
                _leave_unseen(there)
        is_here = [node["NodeID"] == self._here for node in self._nodes]
        super().examine(directory, [fate for fate in fates if is_here[fate.rank]])
        deadline = time.monotonic() + _EXAMINE_SECONDS
        for there, answer in answers:
            try:
                seen = ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
            except ray.exceptions.RayError:
                _leave_unseen(there)
            else:
                for fate, found in zip(there, seen, strict=True):
                    vars(fate).update(vars(found))

    def bury(self, pids: list[int]) -> None:
        """Kill every actor, remove what they left on other nodes, and give the room back."""
        if not self._joined:
            return
        known = self._known_pids()
        own = [pid for rank, pid in known.items() if self._nodes[rank]["NodeID"] == self._here]
        ray_cluster.bounded(lambda: self._bury_by_ray(known), _BURY_SECONDS)
        deadline = time.monotonic() + _END_SECONDS
        for pid in own:
            kill_rank(pid)  # it may be stopped, or out of Ray's reach
            while is_rank(pid) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        self._forget()
        ray_cluster.leave()

    def _bury_by_ray(self, pids: dict[int, int]) -> None:
        ray = ray_cluster.import_ray()
        polite = self.wait(0)
        for actor in self._actors:
            ray.kill(actor)
        tasks = []
        for node in [] if polite else self._other_nodes():
            there = [pid for rank, pid in pids.items() if self._nodes[rank] is node]
            if _answers(node):
                tasks.append(_on(node, clean_up_here).remote(self._name, there))
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=_CLEAN_UP_SECONDS)
        self._room.release()

    def _known_pids(self) -> dict[int, int]:
        """The process of each rank that has told it."""
        ray = ray_cluster.import_ray()
        found = {}
        for rank, pid in enumerate(self._pids):
            with suppress(ray.exceptions.RayError):
                found[rank] = ray.get(pid, timeout=0)
        return found

    def _other_nodes(self) -> list[dict[str, Any]]:
        nodes = {node["NodeID"]: node for node in self._nodes}
        return [node for name, node in nodes.items() if name != self._here]

    @classmethod
    def kept(cls) -> AbstractContextManager[None]:
        """Keep the cluster, or the Ray that is started here."""
        return ray_cluster.joined_ray()


def _on(node: dict[str, Any], function: Callable[..., Any]) -> Any:
    """The function as a task of that node and no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray_cluster.import_ray().remote(function)
    return task.options(num_cpus=0, max_retries=0, scheduling_strategy=there)


def _answers(node: dict[str, Any]) -> bool:
    """Whether a node is there; Ray itself takes long to find out that it is not."""
    address = node["NodeManagerAddress"], node["NodeManagerPort"]
    try:
        socket.create_connection(address, _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _leave_unseen(fates: Sequence[Fate]) -> None:
    for fate in fates:
        fate.unseen = "its node could not be asked what it was doing"


def _last_words(ray: Any, end: Any) -> str:
    """What Ray says of an actor that serves no more, in one line."""
    try:
        return exit_text(ray.get(end))
    except ray.exceptions.RayError as error:
        return " ".join(str(error).split())

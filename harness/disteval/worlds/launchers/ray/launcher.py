"""The launcher whose ranks are actors on a Ray cluster."""

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
from disteval.worlds.channel.connection import read_address
from disteval.worlds.cores import available_cores, thread_variables
from disteval.worlds.launchers.base import LOOPBACK, Hosts, Launcher
from disteval.worlds.launchers.ray import cluster
from disteval.worlds.launchers.ray.node import (
    Leader,
    RankActor,
    clean_up_here,
    examine_here,
    is_rank,
    kill_rank,
)
from disteval.worlds.launchers.ray.room import Room
from disteval.worlds.postmortem import RankStatus, exit_text

_ANSWER_SECONDS = 1.0
_EXAMINE_SECONDS = 10.0
_CLEAN_UP_SECONDS = 5.0
_TERMINATE_SECONDS = 10.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.02


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
        self._reset()

    def _reset(self) -> None:
        self._joined = False
        self._name = ""  # of the world's directory on other nodes
        self._here = ""  # the leader's node
        self._nodes: list[dict[str, Any]] = []  # each rank's
        self._actors: list[Any] = []
        self._pids: list[Any] = []
        self._ends: list[Any] = []

    def accept(self, backend: type[BaseDistBackend]) -> None:
        """Refuse a second world, and a backend whose ranks can't be plain processes."""
        # Before anything is started: a failed start would terminate the first world's ranks.
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
        """Return the user's threads; without them `start` gives a rank as many as it has CPUs."""
        if threads is None and "OMP_NUM_THREADS" in os.environ:
            return {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
        return {} if threads is None else thread_variables(1, threads)

    def prepare(self, world_size: int) -> Hosts:
        """Join the cluster, and wait until it has room for the ranks."""
        cluster.join(self._address)
        self._joined = True
        ray = cluster.import_ray()
        self._here = ray.get_runtime_context().get_node_id()
        self._nodes = self._room.reserve(world_size, self._gpus or 0)
        if all(node["NodeID"] == self._here for node in self._nodes):
            return Hosts(LOOPBACK, [LOOPBACK] * world_size)
        [own] = [node for node in ray.nodes() if node["NodeID"] == self._here]
        addresses = [node["NodeManagerAddress"] for node in self._nodes]
        return Hosts(own["NodeManagerAddress"], addresses, shared=False)

    def start(
        self, directory: Path, world_size: int, environment: dict[str, str]
    ) -> list[Connection]:
        """Start the actors; the one call of each lasts as long as the world."""
        ray = cluster.import_ray()
        self._name = directory.name
        folder = str(Path.cwd())
        path = [entry or folder for entry in sys.path]
        leader = Leader(directory, read_address(directory), folder, path)
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
        return []

    def _threads(self, world_size: int) -> int:
        if self._room.cpus is None and cluster.started_here():
            return max(1, available_cores() // world_size)
        return max(1, int(self._room.cpus or 1))

    def ended(self) -> dict[int, str]:
        """Return the actors that have ended, and how each ended according to Ray."""
        ray = cluster.import_ray()
        ready, _ = ray.wait(self._ends, num_returns=len(self._ends), timeout=0)
        return {self._ends.index(end): _how_ended(ray, end) for end in ready}

    def wait(self, seconds: float) -> bool:
        """Wait until every actor has ended; return False when time ran out."""
        count = len(self._ends)
        ray = cluster.import_ray()
        return count == 0 or not ray.wait(self._ends, num_returns=count, timeout=seconds)[1]

    def how_lost(self, rank: int) -> str:
        """Return in words whether the rank's process ended alone or with its Ray node."""
        node = self._nodes[rank]
        if _answers(node):
            return exit_text(None)
        return f"its Ray node {node['NodeManagerAddress']} does not answer"

    def wait_for_log(self, seconds: float) -> None:
        """Wait until Ray has found out why an actor is gone."""
        cluster.import_ray().wait(self._ends, timeout=seconds)

    def log(self) -> str:
        """Return how the actors that have ended did so, according to Ray."""
        return "\n".join(f"rank {rank}: {how}" for rank, how in self.ended().items())

    def examine(self, directory: Path, ranks: Sequence[RankStatus]) -> None:
        """Examine the ranks of this node, and have the other nodes examine theirs."""
        ray = cluster.import_ray()
        answers = []
        for node in self._other_nodes():
            there = [status for status in ranks if self._nodes[status.rank] is node]
            if _answers(node):
                answers.append((there, _on(node, examine_here).remote(self._name, there)))
            else:
                _mark_unseen(there)
        is_here = [node["NodeID"] == self._here for node in self._nodes]
        super().examine(directory, [status for status in ranks if is_here[status.rank]])
        deadline = time.monotonic() + _EXAMINE_SECONDS
        for there, answer in answers:
            try:
                seen = ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
            except ray.exceptions.RayError:
                _mark_unseen(there)
            else:
                for status, found in zip(there, seen, strict=True):
                    vars(status).update(vars(found))

    def terminate(self, pids: list[int]) -> None:
        """Kill every actor, remove its files on other nodes, and remove the placement group."""
        if not self._joined:
            return
        known = self._known_pids()
        own = [pid for rank, pid in known.items() if self._nodes[rank]["NodeID"] == self._here]
        cluster.bounded(lambda: self._terminate_by_ray(known), _TERMINATE_SECONDS)
        deadline = time.monotonic() + _END_SECONDS
        for pid in own:
            kill_rank(pid)  # it may be stopped, or out of Ray's reach
            while is_rank(pid) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        self._reset()
        cluster.leave()

    def _terminate_by_ray(self, pids: dict[int, int]) -> None:
        ray = cluster.import_ray()
        all_ended = self.wait(0)
        for actor in self._actors:
            ray.kill(actor)
        tasks = []
        for node in [] if all_ended else self._other_nodes():
            there = [pid for rank, pid in pids.items() if self._nodes[rank] is node]
            if _answers(node):
                tasks.append(_on(node, clean_up_here).remote(self._name, there))
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=_CLEAN_UP_SECONDS)
        self._room.release()

    def _known_pids(self) -> dict[int, int]:
        """Return the process id of each rank whose actor has reported it."""
        ray = cluster.import_ray()
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
        """Stay in the cluster, or keep the Ray that is started here."""
        return cluster.joined_ray()


def _on(node: dict[str, Any], function: Callable[..., Any]) -> Any:
    """Return a function as a Ray task that runs on that node and no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = cluster.import_ray().remote(function)
    return task.options(num_cpus=0, max_retries=0, scheduling_strategy=there)


def _answers(node: dict[str, Any]) -> bool:
    """Return whether a node answers; Ray itself takes long to find out that it does not."""
    address = node["NodeManagerAddress"], node["NodeManagerPort"]
    try:
        socket.create_connection(address, _ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _mark_unseen(ranks: Sequence[RankStatus]) -> None:
    for status in ranks:
        status.unseen = "its node could not be asked what it was doing"


def _how_ended(ray: Any, end: Any) -> str:
    """Return how an actor ended according to Ray, in one line."""
    try:
        return exit_text(ray.get(end))
    except ray.exceptions.RayError as error:
        return " ".join(str(error).split())

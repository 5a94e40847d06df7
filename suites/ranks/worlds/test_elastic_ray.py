"""An elastic world on Ray: nodes are lost and added, and lost ranks are started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disteval.worlds import ElasticWorld, LostRank, RayLauncher, report_progress
from disteval.worlds.launchers.ray import joined_ray

from suites.processes import left_over, wait_for
from suites.ray_nodes import RayNodes
from suites.requirements import framework

SECONDS = 120.0
HEAD = 1  # the number of the head node; that of another is the last of its address


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """A cluster of two nodes with a CPU each, of which this process has joined the first."""
    ray = framework("ray")
    cluster = RayNodes(cpus=1)
    try:
        cluster.second = cluster.join("127.0.0.2")  # type: ignore[attr-defined]
        with joined_ray(cluster.address):
            assert wait_for(lambda: sum(n["Alive"] for n in ray.nodes()) == 2), cluster.log()
            yield cluster
    finally:
        cluster.close()


def stay(_: Any, path: str) -> int:
    """Report this process and its node's number until the file is there; return the number."""
    import ray

    host = ray.util.get_node_ip_address()
    number = int(host.rpartition(".")[2]) if host.startswith("127.0.0.") else HEAD
    while not Path(path).exists():
        report_progress(os.getpid(), number)
        time.sleep(0.05)
    return number


def test_lost_ranks_come_back_where_there_is_room(nodes: RayNodes, tmp_path: Any) -> None:
    framework("ray")
    done = tmp_path / "done"
    at: dict[int, tuple[int, int]] = {}  # the process and the node of each rank
    pids: set[int] = set()
    steps: list[str] = []
    told: list[LostRank] = []
    begin = time.monotonic()

    def progress(rank: int, pid: int, host: int | None) -> None:
        at[rank] = pid, host or 0
        pids.add(pid)

    def going_on() -> bool:
        """Kill a rank, then a node, and add another node; end when all ranks work again."""
        hosts = {host for _, host in at.values()}
        if not steps and hosts == {HEAD, 2}:
            steps.append("kill a rank")
            rank = next(rank for rank, (_, host) in at.items() if host == HEAD)
            os.kill(at.pop(rank)[0], signal.SIGKILL)
        elif steps == ["kill a rank"] and hosts == {HEAD, 2}:
            steps.append("kill a node")
            [rank] = [rank for rank, (_, host) in at.items() if host == 2]
            del at[rank]
            nodes.kill_raylet(nodes.second)  # type: ignore[attr-defined]
            nodes.join("127.0.0.3")
        elif len(steps) == 2 and hosts == {HEAD, 3}:
            steps.append("all work")
            done.touch()
        return time.monotonic() < begin + SECONDS and len(steps) < 3

    world = ElasticWorld(2, RayLauncher(nodes.address, cpus_per_worker=1))
    found = world.run(
        stay, *[str(done)] * 2, going_on=going_on, on_lost=told.append, on_progress=progress
    )
    assert steps == ["kill a rank", "kill a node", "all work"]
    assert sorted(found.values.values()) == [HEAD, 3]
    assert len(told) == 2
    assert "127.0.0.2 does not answer" in told[1].how
    assert left_over(list(pids)) == []

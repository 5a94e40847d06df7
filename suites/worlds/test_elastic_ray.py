"""An elastic evaluation on Ray: nodes are lost and added, and the answer stays."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from disteval.cli.eval_world import EvalLeader
from disteval.cli.job import Elastic, EvalJob
from disteval.cli.named_task import NamedTask
from disteval.world import RayLauncher, World

from suites.helpers import lease_task
from suites.helpers.lease_task import TASK, judge, right
from suites.helpers.needs import framework, needs
from suites.helpers.processes import left_over, wait_for
from suites.helpers.ray_nodes import RayNodes, addresses_of_ranks, joined_ray, processes_of_ranks

SECONDS = 120.0


@dataclass
class Cluster:
    """Two nodes with a CPU each, of which this process has joined the first."""

    nodes: RayNodes
    second: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ray = framework("ray")
    with pytest.MonkeyPatch.context() as patched:
        # Its actors inherit this. One rank alone would take half a minute.
        patched.setenv(lease_task.SECONDS, "0.25")
        nodes = RayNodes(cpus=1)
        try:
            second = nodes.join("127.0.0.2")
            with joined_ray(nodes.address):
                assert wait_for(lambda: sum(n["Alive"] for n in ray.nodes()) == 2), nodes.log()
                yield Cluster(nodes, second)
        finally:
            nodes.close()


class Worlds(list[World]):
    """The worlds of ranks on Ray that were begun."""

    def new(self, size: int) -> World:
        """Start another one."""
        launcher = RayLauncher(cpus_per_worker=1)
        world = World(None, size, launcher=launcher, timeout=20.0, on_lost="continue", threads=1)
        self.append(world)
        return world


@needs("ray")
def test_ranks_come_back_where_there_is_room_and_the_answer_stays(cluster: Cluster) -> None:
    elastic = Elastic(None, join=False, ranks_per_lease=1)
    job = EvalJob(NamedTask(TASK), "none", None, None, None, elastic)
    start = Worlds()
    hosts = partial(addresses_of_ranks, start)
    done: list[str] = []
    pids: set[int] = set()

    def upset() -> None:
        """Kill the rank of the first node, then the second node, and add a third one."""

        def soon(seen: Callable[[], bool]) -> bool:
            return wait_for(seen, SECONDS)

        def pid_of(rank: int) -> int:
            return processes_of_ranks(start[0])[rank]

        if soon(lambda: len(hosts()) == 2 and "127.0.0.2" in hosts().values()):
            [far] = [rank for rank, host in hosts().items() if host == "127.0.0.2"]
            near, first = 1 - far, pid_of(1 - far)
            pids.update([first, pid_of(far)])
            os.kill(first, signal.SIGKILL)
            if soon(lambda: pid_of(near) != first):
                done.append("a rank was killed and came back")
            pids.add(pid_of(near))
            cluster.nodes.kill_raylet(cluster.second)
            cluster.nodes.join("127.0.0.3")
            if soon(lambda: hosts().get(far) == "127.0.0.3"):
                done.append("a node was killed, and its rank came back on another")
                pids.add(pid_of(far))

    thread = threading.Thread(target=upset)
    thread.start()
    begin = time.monotonic()
    report = EvalLeader(job, start.new, 2, progress=False).evaluate()
    thread.join()
    assert len(done) == 2, f"{done} after {time.monotonic() - begin:.0f} s"
    assert judge(report, right()) == ""
    hows = [one["how"] for one in report["leases"]["lost"]]
    assert len(hows) == 2
    assert "127.0.0.2" in hows[1]
    assert left_over(list(pids)) == []

"""A world over several nodes of a Ray cluster, which here are several on one machine."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError, WorldError
from disteval.contract import Rendezvous
from disteval.world import RayLauncher, World, report_progress

from suites.helpers.needs import framework, needs
from suites.helpers.processes import left_over, wait_for
from suites.helpers.ray_nodes import RayNodes, joined_ray, listening

SHORT = 4.0
SOCKETS = "suites.mutants.sockets:Sockets"  # real processes, and no library to import


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A cluster of two nodes, of which this process has joined the first."""
    ray = framework("ray")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", str(tmp_path_factory.mktemp("nodes")))
        with closing(RayNodes(cpus=2)) as cluster:
            cluster.join("127.0.0.2")
            with joined_ray(cluster.address):
                wait_for_nodes(ray, 2, cluster)
                yield cluster


def wait_for_nodes(ray: Any, count: int, cluster: RayNodes) -> None:
    alive = wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == count)
    assert alive, cluster.log()


def where(backend: Any) -> tuple[str, int]:
    import ray

    return ray.util.get_node_ip_address(), os.getpid()


def gather(backend: Any, value: Any) -> Any:
    return backend.all_gather_object(value)


def open_to_all(backend: Any) -> int:
    """How many sockets of this process listen at every address of their host."""
    return sum(not host.strip("0") for host, _ in listening(os.getpid()))


def misbehave(backend: Any, place: tuple[int, str]) -> Any:
    """Have one rank do what is named, while the other waits for it in a collective."""
    culprit, how = place
    if backend.rank == culprit:
        print(f"final line of rank {culprit}")
        if how == "hangs":
            signal.pause()
        os.kill(os.getpid(), getattr(signal, how))
    return backend.all_gather_object(0)


def wait_for_ever(backend: Any) -> Any:
    report_progress(0, 1)
    signal.pause()


def directories() -> list[Path]:
    """What worlds have left on the nodes other than the leader's, once they had time to leave."""
    wait_for(lambda: not list(Path(os.environ["TMPDIR"]).glob("disteval-*/*")), 60)
    return list(Path(os.environ["TMPDIR"]).glob("disteval-*/*"))


@needs("ray", "torch_cpu")
def test_ranks_on_several_nodes_gather(nodes: RayNodes) -> None:
    with World("torch_cpu", 2, launcher=RayLauncher(nodes.address, strategy="SPREAD")) as world:
        addresses = {address for address, _ in world.run(where)}
        assert len(addresses) == 2
        assert world.run(gather, "a", [1]) == [["a", [1]]] * 2
        # Each has Ray's own; the store of rank 0 is no other.
        assert len(set(world.run(open_to_all))) == 1
    assert directories() == []


@needs("ray")
@pytest.mark.parametrize("how", ["hangs", "SIGSTOP", "SIGKILL"])
def test_the_report_tells_of_a_rank_on_another_node(nodes: RayNodes, how: str) -> None:
    with World(SOCKETS, 2, launcher=RayLauncher(strategy="STRICT_SPREAD")) as world:
        told = world.run(where)
        [culprit] = [rank for rank, (address, _) in enumerate(told) if address == "127.0.0.2"]
        with pytest.raises(WorldError) as caught:
            world.run(misbehave, *[(culprit, how)] * 2, timeout=SHORT)
    report = str(caught.value)
    assert f"rank {1 - culprit}: " in report and "gather_object #1" in report
    if how == "SIGKILL":  # it was alone on its node, whose files may be gone by now
        assert caught.value.lost[0] == culprit
    else:
        assert f"line of rank {culprit}" in report
        assert ("SIGSTOP" if how == "SIGSTOP" else "in misbehave") in report
    assert left_over([pid for _, pid in told]) == []
    assert directories() == []


@needs("ray")
def test_a_killed_node_is_named(nodes: RayNodes) -> None:
    ray = framework("ray")
    third = nodes.join("127.0.0.3")
    wait_for_nodes(ray, 3, nodes)
    with World(SOCKETS, 3, launcher=RayLauncher(strategy="STRICT_SPREAD")) as world:
        told = world.run(where)
        [culprit] = [rank for rank, (address, _) in enumerate(told) if address == "127.0.0.3"]

        def kill(rank: int, *_: int) -> None:
            if rank == culprit:
                nodes.kill_raylet(third)

        with pytest.raises(WorldError) as caught:
            world.run(wait_for_ever, timeout=60, on_progress=kill)
    assert caught.value.lost[0] == culprit
    assert "127.0.0.3" in str(caught.value).splitlines()[0]
    assert left_over([pid for _, pid in told]) == []
    assert directories() == []


@needs("ray")
def test_what_has_no_room_in_time_is_told_with_what_there_is(nodes: RayNodes) -> None:
    launcher = RayLauncher(cpus_per_worker=3, patience=0.5)
    with pytest.raises(WorldError, match=r"\b2\b.*\b3\b.*\b0\.5 s\b.*\b2\b"):
        World(SOCKETS, 2, launcher=launcher)


def test_a_backend_is_told_that_its_ranks_share_no_directory() -> None:
    with pytest.raises(UsageError, match="several hosts"):
        _ = Rendezvous(None).path


@needs("ray")
def test_an_address_without_a_cluster_is_told() -> None:
    address = "ray://somewhere:10001"
    with pytest.raises(UsageError, match=address):
        World("non_dist", 1, launcher=RayLauncher(address))

"""The estimator on Ray: of this machine alone, and over the nodes of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suites.helpers.needs import framework, needs
from suites.helpers.processes import wait_for
from suites.helpers.ray_nodes import RayNodes

framework("torch")

from disteval.estimator import Estimator  # noqa: E402

from suites.estimator import tiny  # noqa: E402
from suites.estimator.test_estimator_faults import CREATORS, WORKFLOW, config_of  # noqa: E402

pytestmark = needs("torch", "ray")

CPUS = 2
STAGE = {"stage": "after_train_iter"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[RayNodes, Any]]:
    """A cluster of two nodes, and its second one."""
    nodes = RayNodes(cpus=CPUS)
    try:
        yield nodes, nodes.join("127.0.0.2")
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """The same training on local processes."""
    folder = tmp_path_factory.mktemp("local")
    return fit(config_of(folder), folder / "end.pt", launcher="local"), folder / "end.pt"


def fit(config: dict[str, Any], end: Path, **options: Any) -> list[dict[str, Any]]:
    with Estimator(
        tiny.runner, config, world_size=2, progress=False, **{"launcher": "ray"} | options
    ) as estimator:
        records = estimator.fit(CREATORS, WORKFLOW)
        assert estimator.evaluate(tiny.validation)["correct"] == records[-1]["correct"]
        estimator.save(end)
    return records


def test_ray_trains_as_local_processes_do_and_replaces_a_killed_worker(
    cluster: Any, undisturbed: Any, tmp_path: Path
) -> None:
    room = {"address": cluster[0].address}
    records = fit(config_of(tmp_path, STAGE), tmp_path / "end.pt", max_failures=1, **room)
    assert (tmp_path / "once").exists()
    assert tiny.facts(records) == tiny.facts(undisturbed[0])
    tiny.assert_same_state(tmp_path / "end.pt", undisturbed[1])


def test_a_node_that_is_lost_costs_nothing_beyond_the_last_checkpoint(
    cluster: Any, undisturbed: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, second = cluster

    def replace_the_second_node() -> None:
        wait_for((tmp_path / "once").exists, 120)
        nodes.join("127.0.0.3")
        nodes.kill_raylet(second)

    other = threading.Thread(target=replace_the_second_node)
    other.start()
    # A worker takes all CPUs of a node, so there is one on each.
    room = {"address": nodes.address, "cpus_per_worker": CPUS}
    config = config_of(tmp_path, STAGE | {"kind": "hang"})
    records = fit(config, tmp_path / "end.pt", max_failures=1, **room)
    other.join()
    assert "127.0.0.2" in caplog.text
    assert tiny.facts(records) == tiny.facts(undisturbed[0])
    tiny.assert_same_state(tmp_path / "end.pt", undisturbed[1])

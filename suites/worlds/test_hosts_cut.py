"""``disteval eval`` over two hosts whose network is cut while it evaluates."""

import os
import platform
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
from disteval import Task
from disteval.metrics import Accuracy

from suites.helpers.command import main
from suites.helpers.hosts import ADDRESSES, Hosts, ended
from suites.helpers.processes import wait_for
from suites.helpers.waits import shorten_silence
from suites.worlds.test_hosts_launched import check_report

SECONDS = 120
SILENCE = "3"


def predict(numbers: Any) -> Any:
    """Say so when this host has begun, and wait there for what the test does then."""
    if wait := os.environ.get("WAIT"):
        Path(f"begun-{platform.node()}").touch()
        while not Path(wait).exists():
            threading.Event().wait(0.02)
    return np.asarray(numbers) % 4


class NotedAccuracy(Accuracy):
    """An accuracy that says so when this host computes it."""

    def from_sums(self, sums: Any, size: int) -> dict[str, Any]:
        """Return the result of the sums."""
        Path(f"computed-{platform.node()}").touch()
        return super().from_sums(sums, size)


def task() -> Task:
    samples, metrics = [(n, n % 3) for n in range(101)], {"accuracy": NotedAccuracy()}
    return Task(samples=samples, predict=predict, metrics=metrics, batch_size=8)


def run() -> None:
    """Run the command, in which another host may be silent for a shorter time."""
    shorten_silence(int(os.environ["SILENCE"]))
    main()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("impaired")
    (made / "key").touch(0o600)
    (made / "key").write_text("0123456789abcdef" * 4)
    return made


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[Hosts]:
    with Hosts(folder) as two:
        yield two


@pytest.fixture
def hosts(both: Hosts, folder: Path) -> Iterator[Hosts]:
    yield both
    both.set_link(1, "up")
    for noted in (*folder.glob("begun-*"), *folder.glob("computed-*")):
        noted.unlink()


_ports = iter(range(29400, 29500))  # the hosts are the test's own, and so are their ports


def start(hosts: Hosts, *options: str, **variables: str) -> list[Popen[str]]:
    """Start ``disteval eval`` as two ranks, one on each host."""
    return hosts.start_ranks("01", command(*options), settings(hosts) | variables)


def command(*options: str) -> list[str]:
    code = "import suites.worlds.test_hosts_cut as t; t.run()"
    return [sys.executable, "-c", code, "eval", f"{__name__}:task", *options]


def settings(hosts: Hosts) -> dict[str, str]:
    key, leader = Path(hosts.shared, "key"), f"alpha:{next(_ports)}"
    given = {"DISTEVAL_LEADER": leader, "DISTEVAL_KEY_FILE": str(key), "SILENCE": "30"}
    given["DISTEVAL_CANARY"] = "off"  # for a rank has joined when predict is called
    return given | {"PYTHONPATH": os.pathsep.join(sys.path)}


def cut(hosts: Hosts, folder: Path) -> None:
    """Cut the cable when both hosts have begun, and let the samples go on."""
    assert wait_for(lambda: len([*folder.glob("begun-*")]) == 2, SECONDS)
    hosts.set_link(1, "down")


def test_an_elastic_evaluation_goes_on_without_a_host_that_was_cut_off(
    hosts: Hosts, folder: Path
) -> None:
    ranks = start(hosts, "--elastic", "--json", "cut.json", WAIT="go on", SILENCE=SILENCE)
    cut(hosts, folder)
    lines, found = iter(ranks[0].stdout.readline, ""), SimpleQueue[str]()
    # In a thread, as a leader that says nothing more would be waited for without end.
    read = partial(next, (line for line in lines if "was lost" in line), "")
    threading.Thread(target=lambda: found.put(read()), daemon=True).start()
    told = found.get(timeout=SECONDS)
    (folder / "go on").touch()
    printed = [ended(rank, SECONDS) for rank in ranks]
    assert ranks[0].returncode == 0, told + str(printed)
    [lost] = check_report(folder / "cut.json")["leases"]["lost"]
    assert lost["rank"] == 1
    assert re.search(r"\bbeta\b.*\b3 s\b", lost["how"])
    assert lost["how"] in told
    assert ADDRESSES[0] in printed[1]


@pytest.mark.parametrize("network", ["away", "gone"])
def test_ranks_of_another_host_join_an_evaluation_whose_leader_the_user_has_named(
    hosts: Hosts, folder: Path, network: str
) -> None:
    """Its leader ends when they know the result, though the network was away when it had it.

    If the network stays away, the leader gives that host up, and ends with the result.
    """
    given = settings(hosts) | ({"SILENCE": SILENCE} if network == "gone" else {})
    own = ["--elastic", "--world-size", "1", "--launcher", "threads", "--json"]
    early, late = {"WAIT": f"joined {network}"}, {"WAIT": f"computed {network}"}
    leader = hosts.on_host(0, command(*own, "led.json"), given | early)
    assert wait_for((folder / "begun-alpha").exists, SECONDS)
    joiner = hosts.on_host(1, command(*own, "joined.json", "--join"), given | late)
    assert wait_for((folder / "begun-beta").exists, SECONDS)
    hosts.set_link(1, "down")
    (folder / early["WAIT"]).touch()
    if network == "away":
        assert wait_for((folder / "computed-alpha").exists, SECONDS)
        wait_for(lambda: leader.poll() is not None, 2)  # which would be too early
        hosts.set_link(1, "up")
    (folder / late["WAIT"]).touch()
    printed = [ended(each, SECONDS) for each in (leader, joiner)]
    assert [leader.returncode, joiner.returncode] == [0, network == "gone"], printed
    assert "rank 1 (process" in printed[0]
    for name in ("led.json", "joined.json")[: 1 if network == "gone" else 2]:
        check_report(folder / name)

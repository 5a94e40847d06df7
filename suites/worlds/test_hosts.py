"""Ranks of one job on two hosts find their leader, and end in time when they can't.

Each rank is told what a launcher tells its ranks. Real launchers are in ``test_hosts_launched``.
"""

import errno
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disteval.errors import HarnessError
from disteval.world import World, detect_outer_world, follow, release

from suites.helpers.frames import has_key
from suites.helpers.hosts import ADDRESSES, INTERFACE, Hosts, ended
from suites.helpers.processes import hosts_of, wait_for
from suites.helpers.waits import shorten_silence, shorten_start, shorten_stop
from suites.mutants.sockets import Sockets

SECONDS = 120
PORT = "29400"  # the hosts are the test's own, and so are their ports


def names(backend: Any) -> list[str]:
    assert has_key()
    found = backend.all_gather_object((platform.node(), bytes(100_000)))
    return [name for name, _ in found]


def job(work: str) -> int:
    """Take part in a job, as a rank of whatever a launcher has started, and return its status."""
    outer = detect_outer_world()
    assert outer is not None
    shorten_silence(int(os.environ.get("SILENCE", "30")))
    shorten_start(float(os.environ.get("PATIENCE", "60")))
    shorten_stop(float(os.environ.get("STOP", "60")))
    try:
        if outer.rank:
            return follow(outer)
        world = World.lead(outer, float(os.environ.get("TIMEOUT", "20")))
        world.join(Sockets)
        globals()[work](world)
    except HarnessError as error:
        print(error)
        if outer.rank:
            return 2
    release(world, 3)
    return 0


def gather(world: World) -> None:
    print(*hosts_of(world), world.run(names))


def wait_for_nothing() -> None:
    threading.Event().wait()


def stop_and_hang(backend: Any) -> None:
    backend.all_gather_object(None)
    if backend.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if backend.rank == 2:
        wait_for_nothing()
    backend.all_gather_object(None)


def fail(world: World) -> None:
    world.run(stop_and_hang)


def wait_beyond_the_cable(backend: Any) -> None:
    if backend.rank == 1:
        Path("there").touch()
        wait_for_nothing()


def cut(world: World) -> None:
    world.run(wait_beyond_the_cable)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts that are far from each other: packets come late, and some do not come."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "key").touch(0o600)
    (folder / "key").write_text("0123456789abcdef" * 4)
    (folder / "other").touch(0o600)
    (folder / "other").write_text("another key of the same length ." * 2)
    with Hosts(folder, delay=0.02, loss=0.02) as two:
        two.folder = folder
        yield two


def start(
    hosts: Hosts, places: str, work: str, only: int | None = None, **variables: str
) -> list[subprocess.Popen[str]]:
    """Start ranks of a job on the hosts whose numbers ``places`` has, or only one of them."""
    code = "import sys; from suites.worlds import test_hosts as t; sys.exit(t.job(sys.argv[1]))"
    command = [sys.executable, "-c", code, work]
    return hosts.start_ranks(places, command, {"PMIX_NAMESPACE": f"{work}@1"} | variables, only)


def given(hosts: Hosts, host: str, key: str = "key") -> dict[str, str]:
    return {"DISTEVAL_LEADER": f"{host}:{PORT}", "DISTEVAL_KEY_FILE": str(hosts.folder / key)}


@pytest.mark.parametrize("way", ["a shared folder", "a key that the user gave"])
def test_ranks_meet_their_leader_on_whichever_host_it_is(hosts: Hosts, way: str) -> None:
    shared = hosts.folder / "shared"
    shared.mkdir(mode=0o700, exist_ok=True)
    how = given(hosts, "beta") if "key" in way else {"DISTEVAL_CONTROL_DIR": str(shared)}
    ranks = start(hosts, "101", "gather", **how)
    printed = [ended(rank, SECONDS) for rank in ranks]
    alpha, beta = ADDRESSES
    here = f"{beta} {[beta, alpha, beta]} "
    assert printed == [f"{here}{[['beta', 'alpha', 'beta']] * 3}\n", "", ""]
    assert [rank.returncode for rank in ranks] == [0, 3, 3]
    assert list(shared.iterdir()) == []
    left = [
        ended(hosts.on_host(host, ["find", "/tmp", "-name", "disteval-*"]), 20) for host in (0, 1)
    ]
    assert left == ["", ""]


def bytes_sent() -> int:
    """Return how many bytes this host has sent over its cable."""
    [line] = [x for x in Path("/proc/net/dev").read_text().splitlines() if INTERFACE in x]
    return int(line.partition(":")[2].split()[8])


def stop_when_a_part_is_sent(before: int) -> None:
    while bytes_sent() < before + (1 << 20):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGSTOP)


def sent(backend: Any, data: bytes) -> int:
    return len(data)


def stop(world: World) -> None:
    time.sleep(12)  # longer than ranks wait for a sign of life
    assert world.run(names) == [["alpha", "beta"]] * 2
    Path("outlived").touch()
    threading.Thread(target=stop_when_a_part_is_sent, args=(bytes_sent(),)).start()
    world.run(sent, *[bytes(1 << 28)] * 2)


def test_ranks_of_another_host_end_when_their_leader_is_stopped_within_a_message(
    hosts: Hosts,
) -> None:
    leader, rank = start(hosts, "01", "stop", STOP="1", **given(hosts, "alpha"))
    assert re.search(r"no sign of life for 10 s", ended(rank, SECONDS))
    assert (hosts.folder / "outlived").exists()  # the wait before, in which the leader gave signs
    assert (leader.poll(), rank.returncode) == (None, 1)
    leader.kill()  # its host ends what is stopped


def test_a_rank_that_is_not_led_says_where_it_looked_and_why_that_may_fail(hosts: Hosts) -> None:
    # A port of its own, for this leader waits until the hosts end.
    own, soon = {"DISTEVAL_LEADER": f"alpha:{int(PORT) + 1}"}, {"PATIENCE": "2"}
    start(hosts, "01", "gather", only=0, **given(hosts, "alpha") | own | {"PATIENCE": "600"})
    listens = f"until grep -q :{int(PORT) + 1:04X} /proc/net/tcp; do sleep 0.1; done"
    ended(hosts.on_host(0, ["sh", "-c", listens]), SECONDS)
    other_job = {"PMIX_NAMESPACE": "gather@2"}
    ways = {
        r"key\b.* DISTEVAL_LEADER": given(hosts, "alpha") | own | soon | other_job,
        "another key": given(hosts, "alpha", "other") | own | soon,
        "Refused": given(hosts, "beta") | soon,
        r"10\.77\.0\.9:29400": given(hosts, "10.77.0.9") | soon,
    }
    ranks = {
        wanted: start(hosts, "01", "gather", only=1, **variables)[0]
        for wanted, variables in ways.items()
    }
    for wanted, rank in ranks.items():
        assert re.search(f"^beta .*{wanted}", ended(rank, SECONDS))
        assert rank.returncode == 2


def test_a_post_mortem_sees_the_ranks_of_another_host_through_one_that_answers(
    hosts: Hosts,
) -> None:
    leader, *ranks = start(hosts, "011", "fail", TIMEOUT="3", **given(hosts, "alpha"))
    report = ended(leader, SECONDS)
    for wanted in (
        r"\b3 s\b.* 3 ranks.* stop_and_hang", "alpha: rank 0: .* all_gather_object #2",
        "beta: rank 1: .*SIGSTOP.* all_gather_object #2", "beta: rank 2: .* all_gather_object #2",
        "beta: stack of rank 2:", "in wait_for_nothing",
    ):  # fmt: skip
        assert re.search(wanted, report), report
    assert leader.returncode == 3
    assert ended(ranks[1], SECONDS) == ""
    ranks[0].kill()  # its host ends what is stopped


def check_cut(leader: str, rank: str) -> None:
    """Check that both ends of a cut cable name the host that they don't reach, and since when."""
    # The system gives the one reason or the other, by what it was about to send.
    why = "|".join(os.strerror(number) for number in (errno.ETIMEDOUT, errno.EHOSTUNREACH))
    assert re.search(rf"rank 1 .*\bbeta\b.*\b3 s\b.*({why})", leader), leader
    assert re.search(rf"\bbeta .*{ADDRESSES[0]}", rank), rank


def test_a_cut_cable_is_an_error_on_both_ends_in_bounded_time(hosts: Hosts) -> None:
    soon = {"SILENCE": "3", "PATIENCE": "60"}
    leader, rank = start(hosts, "01", "cut", **soon, **given(hosts, "alpha"))
    assert wait_for((hosts.folder / "there").exists)
    begin = time.monotonic()
    hosts.set_link(1, "down")
    try:
        printed, beyond = ended(leader, SECONDS), ended(rank, SECONDS)
        assert time.monotonic() - begin < SECONDS / 3
    finally:
        hosts.set_link(1, "up")
    check_cut(printed, beyond)
    assert (leader.returncode, rank.returncode) == (3, 1)

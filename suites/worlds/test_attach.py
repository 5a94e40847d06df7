"""Ranks that somebody else has started end in time and leave nothing, however their job goes.

Two processes stand for such a job: they are told what a launcher tells its ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from disteval.errors import UsageError, WorldError
from disteval.worlds import World, detect_outer_world, follow, group, rank, release
from disteval.worlds.channel.connection import connect
from disteval.worlds.channel.listener import Listener
from disteval.worlds.channel.messages import Dismissal, Order, send
from disteval.worlds.control_directory import create

from suites.helpers.frames import has_key
from suites.helpers.processes import wait_for
from suites.mutants.sockets import Sockets

SECONDS = 60


class Stubborn(Sockets):
    """Can't leave its group on rank 1."""

    @classmethod
    def finalize_process(cls) -> None:
        if cls._rank == 1:
            threading.Event().wait()


def kill_1(backend: Any) -> None:
    assert has_key()
    assert backend.all_gather_object(backend.rank) == [0, 1]
    if backend.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def lose_a_rank() -> int:
    """What a rank does whose job is lost; the exit status of the others."""
    outer = detect_outer_world()
    assert outer is not None
    if outer.rank:
        return follow(outer)
    world = World.lead(outer)
    world.join(Sockets)
    try:
        world.run(kill_1)
    except WorldError as error:
        print(error)
    release(world, 3)
    return 0


def leave_stubbornly() -> int:
    """What a rank does whose job ends, but for the backend."""
    group._LEAVE_SECONDS = rank._LEAVE_SECONDS = 1.0  # type: ignore[attr-defined]
    outer = detect_outer_world()
    assert outer is not None
    if outer.rank:
        return follow(outer)
    world = World.lead(outer)
    world.join(Stubborn)
    release(world, 0)
    return 0


def start(job: str, number: int, folder: Path) -> subprocess.Popen[str]:
    """Start one rank of a job of two."""
    code = f"import sys; from suites.worlds import test_attach as t; sys.exit(t.{job}())"
    told = {"PMI_RANK": str(number), "PMI_SIZE": "2", "PMIX_NAMESPACE": job}
    paths = {"DISTEVAL_CONTROL_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | told | paths,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(job: str, folder: Path) -> tuple[list[int], str]:
    """Run a job of two; how the ranks ended, and what rank 0 printed."""
    ranks = [start(job, number, folder) for number in range(2)]
    try:
        printed = [process.communicate(timeout=SECONDS)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [process.returncode for process in ranks], printed[0]


def test_a_lost_job_leaves_no_directory_in_the_way_of_the_next(tmp_path: Path) -> None:
    ended, printed = run("lose_a_rank", tmp_path)
    assert "rank 1 was lost" in printed
    assert ended == [3, -signal.SIGKILL]
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_cannot_leave_its_group_ends_all_the_same(tmp_path: Path) -> None:
    assert run("leave_stubbornly", tmp_path)[0] == [0, 1]
    assert list(tmp_path.iterdir()) == []


def evil_leader(directory: Path, touched: Path, stop: threading.Event) -> None:
    """Lead a job, as a stranger who has put a directory of his in the place of the job's."""
    with closing(Listener(directory, None, 1)) as door:
        while not stop.is_set():
            for connection in door.admit(0.1):
                order = Order(cloudpickle.dumps(lambda _: touched.touch()), cloudpickle.dumps(()))
                send(connection, order)
                send(connection, Dismissal())


@pytest.mark.parametrize("place", ["folder", "directory"])
@pytest.mark.parametrize("kind", ["link", "owner"])
def test_no_stranger_leads_a_job_from_the_place_of_its_directory(
    place: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2", "PMIX_NAMESPACE": "a job"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    outer = detect_outer_world()
    assert outer is not None
    directory = outer.control_directory()
    theirs, stop = tmp_path / "theirs", threading.Event()
    if place == "directory":
        directory.parent.mkdir(mode=0o700)
    planted = directory if place == "directory" else directory.parent
    real = theirs if kind == "link" else planted
    real.mkdir(mode=0o700)
    if place == "folder":
        (real / directory.name).mkdir(mode=0o700)
    if kind == "link":
        planted.symlink_to(theirs)
    leader = threading.Thread(
        target=evil_leader,
        args=[real if place == "directory" else real / directory.name, tmp_path / "touched", stop],
    )
    leader.start()
    try:
        if kind == "owner":
            assert wait_for((directory / "address").exists)
            try:
                os.chown(planted, 12345, 12345)
            except PermissionError:
                pytest.skip("only root can make a directory of another user")
        begin = time.monotonic()
        for take_part in (follow, World.lead):
            with pytest.raises(WorldError, match=f"^{planted} .*; expected .*; remove it"):
                take_part(outer)
        assert time.monotonic() - begin < SECONDS / 2
    finally:
        stop.set()
        leader.join(SECONDS)
    assert not (tmp_path / "touched").exists()


def test_a_rank_waits_for_the_leader_who_takes_the_place_of_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    dead = create("job")
    Listener(dead.path, None, 1).close()
    os.close(dead._descriptor)  # as the system does when a process ends
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(connect, dead.path, SECONDS)
        live = create("job")
        with closing(Listener(live.path, None, 1)) as door:
            while not waiting.done():
                door.admit(0.1)
        waiting.result().close()
    live.remove()


def test_nothing_keeps_exit_now_from_ending_a_process() -> None:
    code = (
        "import sys\n"
        "from disteval.worlds import exit_now\n"
        "sys.stdout = open(1, 'w')\n"
        "print('unheard')\n"
        "exit_now(3)\n"
    )
    reader, writer = os.pipe()
    os.close(reader)  # as when whoever read the output is gone
    ended = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, timeout=SECONDS, check=False
    )
    os.close(writer)
    assert ended.returncode == 3


def rank_of_inner(backend: Any) -> tuple[int, int]:
    with World("threads", 2) as inner:
        return backend.rank, len(inner.run(rank_and_pid))


def rank_and_pid(backend: Any) -> int:
    rank: int = backend.rank
    return rank


def test_a_world_in_each_of_several_processes_is_refused_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "3")
    who = "mpirun started 3 processes, and this one is rank 1; each of them would start ranks of"
    with pytest.raises(UsageError, match=rf"{who} its own\. Run this .* launcher='local'\.$"):
        World("threads", 2)
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    from disteval.conformance.runner import check_backend

    with pytest.raises(UsageError, match=rf"{who} its own\. Run the check once"):
        check_backend("threads", (2,))
    with World("threads", 2, launcher="threads") as world:
        # A function that starts a world was written to do so in each rank.
        assert world.run(rank_of_inner) == [(0, 2), (1, 2)]
    monkeypatch.setenv("PMI_SIZE", "x")
    with pytest.raises(UsageError, match="PMI_SIZE is 'x'"):
        World("threads", 2)

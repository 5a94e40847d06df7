"""Nothing of a world outlives its leader, however the leader ends, and whatever its ranks do."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError, WorldError
from disteval.worlds import OuterWorld, World, send_note, watched
from disteval.worlds.launchers import base
from disteval.worlds.launchers.local import LocalLauncher
from disteval.worlds.launchers.threads import ThreadsLauncher

from suites.helpers.namespaces import others, run_alone
from suites.helpers.needs import needs
from suites.helpers.processes import is_running, left_over, start_as_from_a_terminal, wait_for

SECONDS = 20.0  # a watchdog takes tenths of them, but the machine may be busy
# Not in the test that asks for it, all of which would be one of MPI's.
NEEDED = {"mpirun": ["mpi4py"]}
CHILD = [sys.executable, "-c", "import time; time.sleep(1000)"]


def gather(backend: Any) -> Any:
    return backend.all_gather_object(backend.rank)


def hold_on(_: Any, rank: int) -> None:
    """Be beyond the reach of a leader, with children that are beyond the reach of this rank."""
    subprocess.Popen(CHILD, start_new_session=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.waitpid(child, 0)  # its child runs now, and is there to be counted
    send_note(rank)
    if rank == 0:
        sum(range(10**12))  # holds the lock of the interpreter
    os.kill(os.getpid(), signal.SIGSTOP)


def never_exit(_: Any) -> None:
    """Have this rank's process refuse to end, once it has left its group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=[1000]).start()


def lead_ranks_that_hold_on(how: str) -> None:
    """Lead ranks that can't be reached, from a thread of a world that another thread started."""
    launcher = how if how == "mpirun" else LocalLauncher(forks=how == "forked")
    worlds: list[World] = []

    def start() -> None:
        worlds.append(World(None, 2, launcher=launcher))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    if how != "mpirun":  # the next world gets another watchdog, which knows of this one
        watchdog = watched._watchdog._process
        assert watchdog is not None
        watchdog.kill()
        watchdog.wait()
        World("threads", 1).close()
    worlds[0].run(hold_on, 0, 1, timeout=600, on_note=lambda *_: print("held", flush=True))


def lead_ranks_that_never_exit() -> None:
    """End a world whose ranks stay, in a shorter time than usual."""
    base._TERMINATE_SECONDS = 0.5
    with World(None, 2, launcher="local") as world:
        world.run(never_exit)
        print("closing", flush=True)


def lead_without_a_watchdog() -> None:
    """Lead a world, and lose the watchdog."""
    with World("threads", 1):
        watchdog = watched._watchdog._process
        assert watchdog is not None
        watchdog.kill()
        watchdog.wait()
        print("leading", flush=True)
        time.sleep(1000)


def lead_after_a_number_was_given_again() -> None:
    """Lead a world one of whose processes has ended, and lose the watchdog that saw it run."""
    with World("threads", 1) as world:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as ours:
            world._launcher.watched.add(ours.pid)
            time.sleep(0.1)  # the kernel counts start times in hundredths of a second
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(ours.pid - 1))
        other = subprocess.Popen(CHILD)
        watchdog = watched._watchdog._process
        assert watchdog is not None
        watchdog.kill()
        watchdog.wait()
        World("threads", 1).close()
        print(other.pid == ours.pid, other.pid, flush=True)
        time.sleep(1000)


def lead_a_job() -> None:
    """Lead the one rank of somebody's launcher."""
    with World.lead(OuterWorld("torchrun", 0, 1, 1)):
        print("leading", flush=True)
        time.sleep(1000)


def start(job: str, *words: str) -> subprocess.Popen[str]:
    """Start a leader."""
    code = f"from suites.worlds import test_endings as t; t.{job}(*{words})"
    return start_as_from_a_terminal([sys.executable, "-c", code])


def kill_a_leader(job: str, lines: str, *words: str) -> None:
    """Kill a leader when it has printed so many lines, and print what is left some time later."""
    leader = start(job, *words)
    assert leader.stdout is not None
    for _ in range(int(lines)):
        leader.stdout.readline()
    before = len(others())
    leader.kill()
    print(json.dumps({"before": before, **_left()}))


def kill_a_leader_whose_number_was_given_again() -> None:
    """Kill a leader, and print whether a process lives that has the number of an ended one."""
    leader = start("lead_after_a_number_was_given_again")
    assert leader.stdout is not None
    same, pid = leader.stdout.readline().split()
    leader.kill()
    gone = wait_for(lambda: not list(Path(os.environ["TMPDIR"]).glob("disteval-*")), SECONDS)
    print(json.dumps({"same": same, "gone": gone, "runs": is_running(int(pid))}))


def close_where_proc_has_other_numbers() -> None:
    """Print what a leader would kill whose /proc is that of another pid namespace."""
    code = (
        "import os; from disteval.worlds import World, watchdog\n"
        "with World(None, 1, launcher='local') as world:\n"
        "    mark = world._launcher.watched.environment()[watchdog.VARIABLE]\n"
        "    there = os.readlink('/proc/self') != str(os.getpid())\n"
        "    print(there, watchdog.find_all(mark, world._launcher.watched.processes))\n"
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(json.dumps({"found": found, **_left()}))


def lead_without_proc() -> None:
    """Lead a world in a container where no /proc is mounted."""
    subprocess.run(["mount", "--bind", os.environ["TMPDIR"], "/proc"], check=True)
    with World(None, 2, launcher="local") as world:
        told = world.run(lambda _, rank: rank, 0, 1)
    names = [str(path) for path in Path(os.environ["TMPDIR"]).iterdir()]
    print(json.dumps({"told": told, "names": names}))


class Contained(LocalLauncher):
    """Starts each rank as the first process of a pid namespace."""

    name = "contained"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        contain = ["unshare", "--pid", "--fork", "--kill-child"]
        return [[*contain, *command] for command in super().commands(directory, world_size)]


def lead_ranks_in_containers() -> None:
    """Lead a rank that calls itself process 1, and that has to be examined and killed."""
    with World(None, 1, launcher=Contained(), timeout=0.5) as world:
        try:
            world.run(lambda _: time.sleep(1000))
        except WorldError as error:
            print("main thread" in str(error), flush=True)


def close_a_world_in_containers() -> None:
    """Print whether a process that is no rank lives on when ranks in containers are ended."""
    other = subprocess.Popen(CHILD)
    with start("lead_ranks_in_containers") as leader:
        told, _ = leader.communicate(timeout=60)
    print(json.dumps({"told": told, "runs": is_running(other.pid), "left": len(others()) - 1}))


def press_twice(*moments: str) -> None:
    """Interrupt a leader as its world ends, and a second time; print what it has left."""
    leader = start("lead_ranks_that_never_exit")
    assert leader.stdout is not None
    leader.stdout.readline()
    before = len(others())
    for moment in moments:
        time.sleep(float(moment))
        leader.send_signal(signal.SIGINT)
    leader.wait()
    print(json.dumps({"before": before, "status": leader.returncode, **_left()}))


def stop_a_watchdog() -> None:
    """Let a leader end whose watchdog is stopped, and print what is left."""
    code = (
        "import os, signal\n"
        "from disteval.worlds import World, watched\n"
        "World('threads', 1).close()\n"
        "os.kill(watched._watchdog._process.pid, signal.SIGSTOP)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    print(json.dumps(_left()))


def _left() -> dict[str, Any]:
    wait_for(lambda: not others(), SECONDS)
    names = [str(path) for path in Path(os.environ["TMPDIR"]).glob("disteval-*")]
    return {"processes": len(others()), "names": names}


def run(job: str, *words: str, folder: Path) -> dict[str, Any]:
    """Run a job in a namespace of its own, and return what it printed."""
    code = f"from suites.worlds import test_endings as t; t.{job}(*{words})"
    found: dict[str, Any] = json.loads(run_alone(code, folder=folder).splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("how", "processes"),
    [("started", 8), ("forked", 10), pytest.param("mpirun", 9, marks=needs("mpi4py"))],
)
def test_ranks_and_their_children_die_with_their_leader(
    how: str, processes: int, tmp_path: Path
) -> None:
    job = ("lead_ranks_that_hold_on", "2", how)
    found = run("kill_a_leader", *job, folder=tmp_path)
    assert found.pop("before") >= processes  # the leader, its watchdog, ranks, and what they start
    assert found == {"processes": 0, "names": []}


def test_a_process_is_not_killed_for_the_number_that_one_of_a_world_had(tmp_path: Path) -> None:
    found = run("kill_a_leader_whose_number_was_given_again", folder=tmp_path)
    assert found == {"same": "True", "gone": True, "runs": True}


def test_no_process_is_killed_by_a_number_of_another_namespace(tmp_path: Path) -> None:
    found = run("close_where_proc_has_other_numbers", folder=tmp_path)
    assert found == {"found": "True set()\n", "processes": 0, "names": []}


def test_the_number_of_a_rank_in_a_container_of_its_own_is_not_taken_for_one_here(
    tmp_path: Path,
) -> None:
    found = run("close_a_world_in_containers", folder=tmp_path)
    assert found == {"told": "True\n", "runs": True, "left": 0}


def test_a_world_starts_and_ends_where_there_is_no_proc(tmp_path: Path) -> None:
    assert run("lead_without_proc", folder=tmp_path) == {"told": [0, 1], "names": []}


def test_ranks_that_were_dismissed_and_do_not_exit_die_with_their_leader(tmp_path: Path) -> None:
    found = run("kill_a_leader", "lead_ranks_that_never_exit", "1", folder=tmp_path)
    assert found == {"before": 6, "processes": 0, "names": []}


def test_the_directory_of_a_job_that_somebody_else_started_goes_with_its_leader(
    tmp_path: Path,
) -> None:
    found = run("kill_a_leader", "lead_a_job", "1", folder=tmp_path)
    assert found == {"before": 2, "processes": 0, "names": []}


def test_what_a_leader_left_whose_watchdog_was_killed_too_goes_when_the_next_world_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    with start("lead_without_a_watchdog") as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        leader.kill()
    assert len(list(tmp_path.glob("*/*"))) == 1
    with World("threads", 1) as world:
        assert list(tmp_path.glob("*/*")) == [world._directory]
    assert list(tmp_path.iterdir()) == []


def test_a_closed_world_has_had_time_for_each_of_its_ranks() -> None:
    given: list[float] = []

    class Timed(ThreadsLauncher):
        def wait(self, seconds: float) -> bool:
            given.append(seconds)
            return super().wait(seconds)

    for size in (1, 101):
        World("threads", size, launcher=Timed()).close()
    # One of 32 ranks that had imported torch took 0.3 s of a core.
    assert given[1] - given[0] >= 100 * 0.3


@pytest.mark.parametrize("moments", [("0", "0.6"), ("0.3", "0.01")])
def test_no_ctrl_c_as_a_world_ends_leaves_anything(
    moments: tuple[str, str], tmp_path: Path
) -> None:
    found = run("press_twice", *moments, folder=tmp_path)
    expected = {"before": 6, "status": -signal.SIGINT, "processes": 0, "names": []}
    assert found == expected


def start_children(_: Any) -> list[int]:
    children = [subprocess.Popen(CHILD, start_new_session=new) for new in (True, False)]
    return [os.getpid(), *(child.pid for child in children)]


def test_children_of_ranks_end_with_their_world() -> None:
    with World(None, 2, launcher="local") as world:
        pids = [pid for some in world.run(start_children) for pid in some]
    assert left_over(pids) == []


def close_all_descriptors(_: Any, rank: int) -> None:
    if rank == 1:
        os.closerange(3, 256)


def test_a_rank_that_closes_its_own_descriptors_loses_its_own_place_alone() -> None:
    there = []

    class Looking(LocalLauncher):
        def examine(self, directory: Path, ranks: Any) -> None:
            there.append(directory.is_dir())
            super().examine(directory, ranks)

    with World(None, 2, launcher=Looking()) as world:
        with pytest.raises(WorldError) as caught:
            world.run(close_all_descriptors, 0, 1)
        assert str(caught.value).startswith("rank 1 was lost (its process exited with status 1)")
    assert "this rank can't reply to its leader: [Errno 9] Bad file descriptor" in str(caught.value)
    assert there == [True]


def test_more_ranks_than_open_files_are_refused_before_anything_starts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        before = len(list(Path("/dev/fd").iterdir()))
        with pytest.raises(UsageError) as caught:
            World("threads", 200)
        assert len(list(Path("/dev/fd").iterdir())) == before
        words = str(caught.value)
        assert "200 ranks need" in words and "3 for each rank, and its limit is 300" in words
        most = int(words.split()[-4])
        with World("threads", most) as world:
            assert world.run(gather) == [list(range(most))] * most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_world_without_a_watchdog_says_so_and_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched, "_watchdog", watched._Watchdog())
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with World("threads", 2) as world:
        assert world.run(gather) == [[0, 1]] * 2
    [message] = [each for each in caplog.messages if "watchdog" in each]
    assert message.startswith("no watchdog could be started: [Errno 2] No such file or directory")
    assert message.endswith("if this process is killed, ranks that hang will not end with it")


def test_a_watchdog_that_somebody_stopped_ends_with_its_leader(tmp_path: Path) -> None:
    assert run("stop_a_watchdog", folder=tmp_path) == {"processes": 0, "names": []}

"""Whoever ends, and however: the error names the rank in time, and no process or file is left.

Each row runs in a pid namespace with a temporary folder of its own, where all that is left is seen.
"""

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest
from disteval import WorldError
from disteval.world import (
    LocalLauncher,
    World,
    detect_outer_world,
    exit_now,
    follow,
    release,
    send_note,
)
from disteval.world.attached import meeting_place

from suites.helpers.namespaces import others, run_alone
from suites.helpers.needs import needs
from suites.helpers.processes import (
    is_running,
    left_over,
    processes_below,
    start_as_from_a_terminal,
    wait_for,
)
from suites.helpers.waits import shorten_leaving, shorten_stop
from suites.mutants.sockets import Sockets

SECONDS = 60.0  # in which everything ends; it takes up to 10, but the machine may be busy
TIMEOUT = 3.0
NEEDED = {"mpirun": "mpi4py", "torchrun": "torch_cpu"}
OUTER = [pytest.param(started, marks=needs(name)) for started, name in NEEDED.items()]
STARTED = ["forked", "started", *OUTER]
HOW = {  # how a rank ends, and what the error then says of it
    "SIGKILL": "SIGKILL",
    "SIGSTOP": "SIGSTOP",
    "SIGINT": "SIGINT",
    "exits": "status 7",
    "raises": "LookupError: no sample 11",
    "closes its files": "status 1",
}
WAYS = {"forked": [*HOW], "mpirun": ["SIGKILL", "SIGSTOP"]}
WAYS |= {"started": ["SIGKILL"], "torchrun": ["SIGKILL"]}
CHILD = ["sleep", "1000"]
SHARED: list[SharedMemory] = []  # of this rank


def launcher(started: str) -> Any:
    return LocalLauncher(forks=started == "forked") if started not in NEEDED else started


def have_children(forked: bool) -> None:
    """Have children beyond the reach of this rank, of which one has lost its parent if it forks.

    One more is Python's own, which removes the memory that this rank shares when all have ended.
    Launchers kill that one, too.
    """
    if detect_outer_world() is None:
        SHARED.append(SharedMemory(create=True, size=1))
        Path(os.environ["TMPDIR"], f"shared-{SHARED[0].name}").touch()
    pids = [os.getpid(), subprocess.Popen(CHILD, start_new_session=True).pid]
    if forked:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            if orphan := os.fork():
                os.write(writer, str(orphan).encode())
                os._exit(0)
            time.sleep(1000)
            os._exit(0)
        os.waitpid(child, 0)
        pids.append(int(os.read(reader, 20)))
    send_note(pids)


def end(_: Any, place: tuple[int, str]) -> None:
    """End rank 1 in the way that is named when all have children; the others wait for it."""
    rank, how = place
    have_children(forked=False)
    held = Path(os.environ["TMPDIR"])
    (held / f"held-{rank}").touch()
    if rank != 1 or how == "waits":
        threading.Event().wait()
    assert wait_for(lambda: len([*held.glob("held-*")]) > 1)
    if how == "exits":
        os._exit(7)
    if how == "raises":
        raise LookupError("no sample 11")
    if how == "closes its files":
        os.closerange(3, 256)
        return
    os.kill(os.getpid(), getattr(signal, how))
    threading.Event().wait()


def hold_on(_: Any, rank: int) -> None:
    """Be beyond the reach of a leader."""
    have_children(forked=True)
    if rank == 0:  # hold the lock of the interpreter, and wait for what no signal interrupts
        mutex, system = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        system.pthread_mutex_lock(mutex)
        system.pthread_mutex_lock(mutex)
    os.kill(os.getpid(), signal.SIGSTOP)


def stay(_: Any) -> None:
    """Have this rank's process refuse to end, once it has left its group."""
    have_children(forked=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=[1000]).start()


def kill_1(_: Any, rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def pid(_: Any) -> int:
    return os.getpid()


def about_rank_1(error: WorldError) -> str:
    """Return the lines of an error that name rank 1."""
    return "\n".join(line for line in str(error).splitlines() if "rank 1" in line)


def lose_ranks(started: str) -> None:
    """Lose a rank of one world after the other, and print what each error says of it."""
    found = {}
    for how in WAYS[started]:
        held: list[int] = []
        begin = time.monotonic()
        with (
            World(None, 2, launcher=launcher(started), timeout=TIMEOUT) as world,
            pytest.raises(WorldError) as caught,
        ):
            places = [(rank, how) for rank in range(2)]
            world.run(end, *places, on_note=lambda _, pids, held=held: held.extend(pids))
        assert time.monotonic() - begin < SECONDS
        assert len(held) == 4, how
        found[how] = about_rank_1(caught.value), left_over(held), left()["names"]
        for path in Path(os.environ["TMPDIR"]).glob("held-*"):
            path.unlink()
    print(json.dumps(found))


def lead(started: str, _: str) -> None:
    """Lead ranks that hold on, and wait for who ends this."""
    held = []

    def held_on(rank: int, _: Any) -> None:
        held.append(rank)
        if len(held) == 2:
            print(len(others()), flush=True)

    # Ranks end with the process that leads them, not with the thread that started their world.
    worlds: list[World] = []
    make = threading.Thread(
        target=lambda: worlds.append(World(None, 2, launcher=launcher(started)))
    )
    make.start()
    make.join()
    with worlds[0] as world:
        world.run(hold_on, 0, 1, timeout=600, on_note=held_on)


def lead_ranks_that_stay(_: str, __: str) -> None:
    """End a world whose ranks do not end."""
    with World(None, 2, launcher="local") as world:
        world.run(stay)
        print(len(others()), flush=True)


def lead_a_job(size: str, _: str) -> None:
    """Lead the ranks of somebody's launcher, by default one."""
    os.environ |= {"PMI_RANK": "0", "PMI_SIZE": size or "1"}
    outer = detect_outer_world()
    assert outer is not None
    with World.lead(outer):
        print(len(others()), flush=True)
        time.sleep(1000)


def lead_without_helpers(_: str, __: str) -> None:
    """Lead a world whose helpers are killed."""
    with World("threads", 2):
        for helper in processes_below(os.getpid()):
            os.kill(helper, signal.SIGKILL)
        print("leading", flush=True)
        time.sleep(1000)


def start(job: str, *words: str) -> subprocess.Popen[str]:
    """Start a process of this module."""
    code = f"from suites.worlds import test_nothing_is_left as t; t.{job}(*{words})"
    return start_as_from_a_terminal([sys.executable, "-c", code])


def left() -> dict[str, Any]:
    """Return the names of the files and of the shared memory that are left."""
    folder = Path(os.environ["TMPDIR"])
    shared = [path.name.removeprefix("shared-") for path in folder.glob("shared-*")]
    names = [str(path) for path in folder.glob("disteval-*")]
    return {"names": names + [name for name in shared if Path("/dev/shm", name).exists()]}


def end_a_leader(job: str, started: str, how: str, *moments: str) -> None:
    """Have a leader end when its ranks are busy, and print how it ended and what it has left."""
    leader = start(job, started, how)
    assert leader.stdout is not None
    before = int(leader.stdout.readline())
    for moment in moments or "0":
        time.sleep(float(moment))
        leader.send_signal(getattr(signal, how))
    try:
        leader.wait(SECONDS / 3)
    except subprocess.TimeoutExpired:
        if how != "SIGINT":
            raise
        leader.send_signal(signal.SIGINT)  # Python drops one that comes while it collects garbage
        leader.wait(SECONDS / 3)
    wait_for(lambda: not others() and not left()["names"], SECONDS)
    found = {"before": before, "status": leader.returncode, "processes": len(others())}
    print(json.dumps(found | left()))


def run(job: str, *words: str, folder: Path) -> Any:
    """Run a job in a namespace of its own, and return what it printed."""
    code = f"from suites.worlds import test_nothing_is_left as t; t.{job}(*{words})"
    return json.loads(run_alone(code, folder=folder).splitlines()[-1])


@pytest.mark.parametrize("started", STARTED)
def test_a_rank_that_ends_is_named_and_nothing_of_its_world_stays(
    started: str, tmp_path: Path
) -> None:
    found = run("lose_ranks", started, folder=tmp_path)
    assert [*found] == WAYS[started]
    for how, (line, processes, names) in found.items():
        # How one ended that mpirun or torchrun has started, it does not always tell.
        assert "rank 1" in line and (started in NEEDED or HOW[how] in line), (how, line)
        assert (processes, names) == ([], []), how


def fork_and_die(_: Any, rank: int) -> None:
    """Kill rank 1, whose child lives on and has its files open, as a loader's workers do."""
    if rank == 1:
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)
        os._exit(0)
    threading.Event().wait()


def test_a_rank_that_is_killed_is_named_although_a_child_of_it_lives_on() -> None:
    with (
        World(None, 2, launcher="local", timeout=TIMEOUT) as world,
        pytest.raises(WorldError) as caught,
    ):
        world.run(fork_and_die, 0, 1)
    assert caught.value.lost == (1,)


@pytest.mark.parametrize(
    ("started", "how"),
    [
        ("forked", "SIGKILL"),
        ("forked", "SIGINT"),
        ("started", "SIGKILL"),
        *[
            pytest.param(started, how, marks=needs(name))
            for started, name in NEEDED.items()
            for how in ("SIGKILL", "SIGINT")[: 1 if started == "torchrun" else 2]
        ],
    ],
)
def test_ranks_and_their_children_end_with_their_leader(
    started: str, how: str, tmp_path: Path
) -> None:
    found = run("end_a_leader", "lead", started, how, folder=tmp_path)
    assert found.pop("before") >= 7  # the leader, two ranks, and two that each has started
    assert found == {"status": -getattr(signal, how), "processes": 0, "names": []}


@pytest.mark.parametrize(
    ("job", "how", "moments"),
    [
        ("lead_ranks_that_stay", "SIGKILL", ()),
        ("lead_ranks_that_stay", "SIGINT", ("0", "0.6")),
        ("lead_a_job", "SIGKILL", ()),
    ],
)
def test_nothing_is_left_of_a_leader_that_ends_while_its_world_ends_or_that_somebody_started(
    job: str, how: str, moments: tuple[str, ...], tmp_path: Path
) -> None:
    found = run("end_a_leader", job, "", how, *moments, folder=tmp_path)
    assert found.pop("before") >= 2
    assert found == {"status": -getattr(signal, how), "processes": 0, "names": []}


def test_what_a_leader_left_whose_helpers_were_killed_too_goes_when_the_next_world_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    with start("lead_without_helpers", "", "") as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        leader.kill()
    [stale] = tmp_path.glob("*/*")
    with World("threads", 1):
        [made] = tmp_path.glob("*/*")
        assert made != stale
    assert list(tmp_path.iterdir()) == []


def lose_helpers(how: str) -> None:
    """Lose the processes that a leader has beside its ranks, and print what came of it."""
    found: list[Any] = []
    with World(None, 2, launcher="local", timeout=TIMEOUT) as world:
        ranks = world.run(pid)
        helpers = {*processes_below(os.getpid())} - {*ranks}
        found.append(len(helpers))
        os.kill(ranks[1], signal.SIGSTOP)  # it notices nothing by itself
        for helper in helpers:
            os.kill(helper, getattr(signal, how))
        with pytest.raises(WorldError) as caught:
            world.run(pid)
        found.append([*caught.value.lost] or about_rank_1(caught.value))
    found.append(left_over(ranks))
    with World(None, 2, launcher="local") as world:  # which has others
        found.append(world.run(lambda backend, value: value, 3, 4))
    print(json.dumps(found), flush=True)


def outlive(job: str, *words: str) -> None:
    """Run a job in a process of its own, and print what it printed and has left."""
    with start(job, *words) as leader:
        told, said = leader.communicate(timeout=SECONDS)
    assert leader.returncode == 0, said
    wait_for(lambda: not others(), SECONDS)
    print(json.dumps([json.loads(told.splitlines()[-1]), len(others()), left()["names"]]))


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_helpers_that_end_or_are_stopped_cost_one_world_and_no_more(
    how: str, tmp_path: Path
) -> None:
    told, processes, names = run("outlive", "lose_helpers", how, folder=tmp_path)
    helpers, lost, ranks, after = told
    assert helpers > 1
    assert lost and {*lost} <= {0, 1} if how == "SIGKILL" else "SIGSTOP" in lost
    assert (ranks, after) == ([], [3, 4])
    assert (processes, names) == (0, [])


def lead_without_any_helper() -> None:
    """Lead a world where no helper can be started, and print what was said of it."""
    sys.executable = "/no/such/python"
    with World("threads", 2) as world:
        print(json.dumps(world.run(lambda backend: backend.all_gather_object(backend.rank))))


def test_a_world_without_helpers_works(tmp_path: Path) -> None:
    found = run("outlive", "lead_without_any_helper", folder=tmp_path)
    assert found == [[[0, 1]] * 2, 0, []]


def lose_a_launcher(started: str, how: str) -> None:
    """Lose the process that has started the ranks, and print what the error says."""
    word = {"mpirun": "mpi", "torchrun": "torch"}[started]
    with World(None, 2, launcher=started, timeout=TIMEOUT) as world:
        ranks = world.run(pid)
        for process in {*processes_below(os.getpid())} - {*ranks}:
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended with one before
                words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
                if any(word in Path(each).name for each in words):  # and no folder above it
                    os.kill(process, getattr(signal, how))
        begin = time.monotonic()
        with pytest.raises(WorldError) as caught:
            world.run(end, (0, "waits"), (1, "waits"))
        lost = [*caught.value.lost]
    print(json.dumps([lost, time.monotonic() - begin < SECONDS, left_over(ranks)]), flush=True)


@pytest.mark.parametrize("started", OUTER)
def test_a_launcher_that_is_killed_takes_its_ranks_with_it(started: str, tmp_path: Path) -> None:
    told, processes, names = run("outlive", "lose_a_launcher", started, "SIGKILL", folder=tmp_path)
    lost, in_time, ranks = told
    # Ranks of torchrun's wait on to the deadline, and on a busy machine it comes first for others.
    assert {*lost} <= {0, 1}
    assert (in_time, ranks, processes, names) == (True, [], 0, [])


def follow_a_job() -> None:
    """Be rank 1 of somebody's launcher."""
    os.environ |= {"PMI_RANK": "1", "PMI_SIZE": "2"}
    shorten_stop(TIMEOUT)
    outer = detect_outer_world()
    assert outer is not None
    sys.exit(follow(outer))


def test_ranks_of_a_launcher_whose_leader_is_stopped_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))
    with start("lead_a_job", "2", "") as leader, start("follow_a_job") as rank:
        assert leader.stdout is not None
        leader.stdout.readline()
        leader.send_signal(signal.SIGSTOP)
        try:
            assert rank.wait(SECONDS) == 1
        finally:
            leader.kill()


def stop_a_leader() -> None:
    """Suspend a leader for longer than its ranks may take, and print what it says then."""
    code = "from suites.worlds import test_nothing_is_left as t; t.lead_and_wait()"
    go = Path(os.environ["TMPDIR"], "go")
    with start_as_from_a_terminal([sys.executable, "-c", code, str(go)]) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        leader.send_signal(signal.SIGSTOP)
        go.touch()
        time.sleep(1.5 * TIMEOUT)
        leader.send_signal(signal.SIGCONT)
        print(leader.communicate(timeout=SECONDS)[0], end="")


def lead_and_wait() -> None:
    """Lead ranks that wait for a file, and print what they return."""

    def work(_: Any, path: str) -> int:
        send_note("begun")
        while not Path(path).exists():
            time.sleep(0.02)
        return os.getpid()

    with World(None, 2, launcher="local", timeout=TIMEOUT) as world:
        told = world.run(work, *[sys.argv[1]] * 2, on_note=lambda *_: print("begun", flush=True))
        print(json.dumps(len({*told})))


def test_a_leader_that_was_suspended_finds_what_its_ranks_returned_meanwhile(
    tmp_path: Path,
) -> None:
    assert run("stop_a_leader", folder=tmp_path) == 2


class Stubborn(Sockets):
    """Can't leave its group on rank 1."""

    @classmethod
    def finalize_process(cls) -> None:
        if cls._rank == 1:
            threading.Event().wait()


def gather_twice(backend: Any, who: str) -> None:
    """Meet the other rank, and then wait for it, unless this one is to end."""
    send_note(backend.all_gather_object(backend.rank))
    if backend.rank == 1 and who == "rank":
        os.kill(os.getpid(), signal.SIGKILL)
    backend.all_gather_object(None)


def take_part(number: str, size: str, who: str) -> None:
    """Be a rank of a job that somebody else has started, of which one ends."""
    os.environ |= {"PMI_RANK": number, "PMI_SIZE": size, "PMIX_NAMESPACE": who}
    outer = detect_outer_world()
    assert outer is not None
    shorten_leaving(1.0)
    if outer.rank:
        exit_now(follow(outer))
    world = World.lead(outer)
    world.join(Stubborn if who == "stubborn rank" else Sockets)

    def begun(_: int, __: Any) -> None:
        if who == "leader":
            os.kill(os.getpid(), signal.SIGKILL)

    if who != "stubborn rank":
        try:
            world.run(gather_twice, who, who, on_note=begun)
        except WorldError as error:
            print([*error.lost], flush=True)
    release(world, 3 * (who == "rank"))


def leave_an_address(job: str, size: str) -> None:
    """Leave what the leader of a job leaves whose host has lost power."""
    os.environ |= {"PMI_RANK": "0", "PMI_SIZE": size, "PMIX_NAMESPACE": job}
    outer = detect_outer_world()
    assert outer is not None
    stale = meeting_place(outer)
    stale.parent.mkdir(mode=0o700)
    stale.mkdir(mode=0o700)
    (stale / "address").write_text(json.dumps({"host": None, "port": 0, "key": "00" * 32}))


def end_a_job(who: str, *numbers: str) -> None:
    """Have a rank of somebody's job end, and print how every one ended."""
    size = str(len(numbers))
    if who == "leader before this one":
        leave_an_address(who, size)
    ranks = [start("take_part", number, size, who) for number in numbers]
    said = [rank.communicate(timeout=SECONDS) for rank in ranks]
    wait_for(lambda: not others(), SECONDS)
    statuses = [rank.returncode for rank in ranks]
    print(json.dumps([statuses, "".join(said[0]), [len(others()), left()["names"]]]))


@pytest.mark.parametrize(
    ("who", "ranks", "ended", "named"),
    [
        ("rank", "01", [3, -signal.SIGKILL], "[1]"),
        ("leader", "01", [-signal.SIGKILL, 1], ""),
        ("stubborn rank", "01", [0, 1], ""),
        ("leader before this one", "10", [0, 0], ""),
        ("rank that came twice", "011", [1, 1, 1], "rank 1"),
    ],
)
def test_a_job_that_somebody_else_has_started_ends_as_a_whole(
    who: str, ranks: str, ended: list[int], named: str, tmp_path: Path
) -> None:
    statuses, said, nothing = run("end_a_job", who, *ranks, folder=tmp_path)
    assert statuses == ended, said
    assert named in said
    assert nothing == [0, []]


def test_nothing_keeps_exit_now_from_ending_a_process() -> None:
    code = "import sys; sys.stdout = open(1, 'w'); print('unheard')\n"
    code += "from disteval.world import exit_now; exit_now(3)"
    reader, writer = os.pipe()
    os.close(reader)  # as when whoever read the output is gone
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, stdout=writer, timeout=SECONDS, check=False)
    os.close(writer)
    assert ended.returncode == 3


def start_beside_a_full_disk() -> None:
    """Print the error of a world whose temporary folder has no space left."""
    folder = tempfile.gettempdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    with open(f"{folder}/filler", "wb", 0) as file:
        while os.statvfs(folder).f_bavail:
            file.write(bytes(4096))
    with pytest.raises(WorldError) as caught:
        World("non_dist", 1)
    print(json.dumps([str(caught.value), [path.name for path in Path(folder).iterdir()]]))


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    said, names = run("start_beside_a_full_disk", folder=tmp_path)
    assert os.strerror(errno.ENOSPC) in said and "TMPDIR" in said
    assert names == ["filler"]


def end_a_world_beside_a_stranger() -> None:
    """Give a process that is no rank the number of one that has ended; print whether it lives."""
    with World(None, 2, launcher="local") as world:
        ended = world.run(pid)[1]
        with pytest.raises(WorldError):
            world.run(kill_1, 0, 1)
        assert wait_for(lambda: not Path(f"/proc/{ended}").exists())
        time.sleep(0.1)  # the kernel counts start times in hundredths of a second
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(ended - 1))
        stranger = subprocess.Popen(CHILD)
    print(json.dumps([stranger.pid == ended, is_running(stranger.pid)]))
    stranger.kill()


def test_no_stranger_is_killed_for_the_number_that_a_rank_had(tmp_path: Path) -> None:
    [same, lives], *nothing = run("outlive", "end_a_world_beside_a_stranger", folder=tmp_path)
    assert (same, lives, nothing) == (True, True, [0, []])


class Contained(LocalLauncher):
    """Starts each rank as the first process of a pid namespace."""

    name = "contained"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        contain = ["unshare", "--pid", "--fork", "--kill-child"]
        return [[*contain, *command] for command in super().commands(directory, world_size)]


def lead_ranks_in_containers() -> None:
    """Lead a rank that calls itself process 1, and that has to be examined and ended."""
    other = subprocess.Popen(CHILD)
    with World(None, 1, launcher=Contained()) as world:
        [number] = world.run(pid)
        with pytest.raises(WorldError) as caught:
            world.run(lambda _: time.sleep(1000), timeout=0.5)
    print(json.dumps([number, "main thread" in str(caught.value), is_running(other.pid)]))
    other.kill()


def test_the_number_of_a_rank_in_a_container_is_not_taken_for_one_here(tmp_path: Path) -> None:
    found = run("outlive", "lead_ranks_in_containers", folder=tmp_path)
    assert found == [[1, True, True], 0, []]


OWN = """
import os
import pathlib
import time
import numpy as np
from disteval import BaseDistBackend, Task
from disteval.metrics import Mean

class Slow:
    def __len__(self):
        return 40

    def __getitem__(self, number):
        time.sleep(0.05)
        return float(number)

task = Task(
    samples=Slow(), predict=abs, metrics={"mean": Mean()}, batch_size=1, workers=2,
    update=lambda outputs, batch: (outputs,),
)

def evaluate(case):
    pathlib.Path("begun").touch()
    time.sleep(1000)

class Late(BaseDistBackend):
    # Starts MPI on all ranks but one, for which the others wait.

    launcher = "mpirun"
    is_initialized = rank = world_size = all_gather_object = broadcast_object = None

    def __new__(cls):
        if os.environ.get("PMI_RANK") == "1":
            time.sleep(1000)
        from disteval_backends.mpi4py_dist import MPI4PyDist

        return MPI4PyDist()
"""


def end_a_command(how: str, *words: str) -> None:
    """Have a command end when its ranks are busy, and print what it leaves."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    folder, shared = Path(os.environ["TMPDIR"]), Path("/dev/shm")
    (folder / "own.py").write_text(OWN)
    command = start_as_from_a_terminal(
        [sys.executable, "-m", "disteval.cli", *words], cwd=folder, start_new_session=True
    )
    assert wait_for(lambda: (folder / "begun").exists() or [*shared.iterdir()], SECONDS)
    wait_for(lambda: not [*shared.iterdir()], 2)  # Python notes its semaphores a moment later
    command.send_signal(getattr(signal, how))
    _, told = command.communicate(timeout=2 * SECONDS)
    wait_for(lambda: not others(), SECONDS)
    names = [path.name for path in [*folder.glob("disteval-*"), *shared.iterdir()]]
    print(json.dumps([command.returncode, len(others()), names, told[-1000:]]))


CHECK = ["check", "mpi4py", "--world-size=2", "--examples=2"]
START = ["check", "own:Late", "--world-size=2"]
WORKERS = ["eval", "own:task", "--world-size=2"]
AUDIT = ["audit", "own:evaluate", "--backend=torch_cpu", "--world-size=2"]


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        pytest.param("SIGINT", 130, CHECK, marks=needs("mpi4py")),
        pytest.param("SIGINT", 130, START, marks=needs("mpi4py")),
        pytest.param("SIGKILL", -signal.SIGKILL, START, marks=needs("mpi4py")),
        pytest.param("SIGINT", 130, WORKERS, marks=needs("torch_cpu")),
        pytest.param("SIGKILL", -signal.SIGKILL, WORKERS, marks=needs("torch_cpu")),
        pytest.param("SIGKILL", -signal.SIGKILL, AUDIT, marks=needs("torch_cpu")),
    ],
)
def test_a_command_leaves_no_shared_memory_and_no_folder(
    how: str, status: int, words: list[str], tmp_path: Path
) -> None:
    found, processes, names, told = run("end_a_command", how, *words, folder=tmp_path)
    assert (found, processes, names) == (status, 0, []), told

"""A world returns what its ranks return, and says who is to blame when they don't."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError, WorldError, get_dist_backend
from disteval.metrics import Mean
from disteval.world import Launcher, LocalLauncher, World, report_progress, send_note

from suites.helpers.faults import limit_messages
from suites.helpers.frames import Unloadable
from suites.helpers.needs import each, needs
from suites.helpers.processes import ThreadsLauncher, left_over, register_launcher
from suites.helpers.waits import shorter_start

# A hung rank costs this long. Ranks that work answer in milliseconds, or report in every fifth of a
# second, so that only a stall of seconds makes them late.
SHORT = 4.0
STEPS = 26
SOCKETS = "suites.mutants.sockets:Sockets"


@pytest.fixture
def anywhere() -> str:
    """A backend of real processes that needs no library; what is tested depends on none."""
    return SOCKETS


def gather(backend: Any, value: Any) -> Any:
    return backend.rank, backend.all_gather_object(value)


def misbehave(backend: Any, place: tuple[int, int, str]) -> Any:
    """Have one rank do what is named, while the others wait for it in a collective."""
    rank, culprit, how = place
    if rank == culprit:
        if how == "raises":
            raise LookupError("a mistake")
        if how == "exits":
            os._exit(7)
        if how == "hangs":
            threading.Event().wait(30)
        os.kill(os.getpid(), getattr(signal, how))
    return backend.all_gather_object(rank)


def raise_everywhere(backend: Any, rank: int) -> None:
    raise LookupError(f"mistake {rank}")


def work_slowly(backend: Any, rank: int) -> int:
    for step in range(STEPS):
        time.sleep(1.3 * SHORT / STEPS)
        report_progress(step + 1, STEPS)
    return rank


def send_two_notes(backend: Any, rank: int) -> str:
    send_note({"rank": rank, "turn": 1})
    send_note({"rank": rank, "turn": 2})
    return "done"


def pid(backend: Any) -> int:
    return os.getpid()


def unpicklable(backend: Any) -> Any:
    return threading.Lock()


@pytest.mark.parametrize("backend", each(SOCKETS, "mpi4py"))
def test_values_come_back_in_rank_order_and_nobody_stays(backend: str) -> None:
    with World(backend, 3) as world:
        pids = world.run(pid)
        for turn in range(20):
            values = world.run(gather, turn, "b", [turn])
            assert values == [(rank, [turn, "b", [turn]]) for rank in range(3)]
    assert len(set(pids)) == 3
    assert left_over(pids) == []


def test_when_all_raise_all_are_named_and_the_world_goes_on(anywhere: str) -> None:
    with World(anywhere, 3) as world:
        with pytest.raises(WorldError) as caught:
            world.run(raise_everywhere, 0, 1, 2)
        assert [repr(caught.value.errors[r]) for r in range(3)] == [
            repr(LookupError(f"mistake {r}")) for r in range(3)
        ]
        for rank in range(3):
            assert re.search(f"rank {rank}: .*mistake {rank}", str(caught.value))
        assert world.run(gather, 1, 2, 3)[0] == (0, [1, 2, 3])


def test_a_value_that_cannot_travel_is_an_error_of_its_rank(anywhere: str) -> None:
    with World(anywhere, 2) as world:
        with pytest.raises(WorldError) as caught:
            world.run(unpicklable)
        assert [type(caught.value.errors[rank]) for rank in (0, 1)] == [TypeError] * 2
        assert world.run(gather, 1, 2)[1] == (1, [1, 2])


def return_what_the_leader_cannot_rebuild(backend: Any, rank: int) -> Any:
    return Unloadable() if rank else "fine"


def note_what_the_leader_cannot_rebuild(backend: Any, rank: int) -> None:
    if rank:
        send_note(Unloadable())


def test_what_the_leader_cannot_rebuild_is_an_error_that_names_the_rank() -> None:
    with World("threads", 2) as world:
        for work in return_what_the_leader_cannot_rebuild, note_what_the_leader_cannot_rebuild:
            with pytest.raises(WorldError) as caught:
                world.run(work, 0, 1, on_note=lambda *_: None)
            assert "rank 1" in str(caught.value) and "ValueError" in str(caught.value)
            if work is return_what_the_leader_cannot_rebuild:
                assert world.run(gather, 1, 2)[1] == (1, [1, 2])


WAYS = {
    "raises": (1, "LookupError"), "SIGKILL": (1, "SIGKILL"), "exits": (1, "status 7"),
    "hangs": (2, "in misbehave"), "SIGSTOP": (2, "SIGSTOP"),
}  # fmt: skip
TRIED = {
    SOCKETS: [*WAYS],
    "threads": ["raises", "hangs"],  # can't be killed or stopped one by one
    "torch_cpu": ["SIGKILL"],  # of which the others' errors tell as well
    "mpi4py": ["hangs", "exits"],
}


@pytest.mark.parametrize(
    ("over", "how"),
    [
        pytest.param(over, how, marks=param.marks)
        for param, ways in zip(each(*TRIED), TRIED.values(), strict=True)
        for over in param.values
        for how in ways
    ],
)
def test_a_rank_that_keeps_the_others_waiting_is_named_in_time(over: str, how: str) -> None:
    culprit, named = WAYS[how]
    with World(over, 3) as world:
        pids = world.run(pid)
        begin = time.monotonic()
        with pytest.raises(WorldError) as caught:
            world.run(misbehave, *[(rank, culprit, how) for rank in range(3)], timeout=SHORT)
        assert time.monotonic() - begin < SHORT + 15
    report, lost = str(caught.value), caught.value.lost
    if how in ("SIGKILL", "exits"):
        # mpirun ends the other ranks within a millisecond, so which was first is not always seen.
        assert culprit in lost and (over == "mpi4py" or (lost[0] == 1 and named in report))
    else:
        assert (lost, {*caught.value.errors}) == ((), {1} if how == "raises" else set())
        assert re.search(rf"rank {culprit}\b.*(\n.*)*{named}", report)
        assert re.search(r"rank 0: .* all_gather_object #1", report)
    assert over == "threads" or left_over(pids) == []


def test_a_progress_message_resets_the_deadline(anywhere: str) -> None:
    progress: list[tuple[int, int, int]] = []
    with World(anywhere, 2) as world:
        values = world.run(
            work_slowly,
            0,
            1,
            timeout=SHORT,
            on_progress=lambda *reported: progress.append(reported),
        )
    assert values == [0, 1]
    assert (1, STEPS, STEPS) in progress


def test_notes_reach_the_leader_in_order_before_they_return(anywhere: str) -> None:
    notes: list[Any] = []
    done = ["done"] * 2
    with World(anywhere, 2) as world:
        assert world.run(send_two_notes, 0, 1, on_note=lambda *note: notes.append(note)) == done
        assert world.run(send_two_notes, 0, 1) == done
    for rank in range(2):
        turns = [{"rank": rank, "turn": turn} for turn in (1, 2)]
        assert [note for teller, note in notes if teller == rank] == turns


def test_a_world_that_nobody_closes_leaves_no_directory(tmp_path: Path) -> None:
    script = (
        "from disteval.world import World\n"
        "kept = World('threads', 2)\n"
        "World('threads', 2).run(lambda backend: backend.rank)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.check_call([sys.executable, "-c", script], env=environment, timeout=60)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *[({"world_size": size}, repr(size)) for size in (0, -1, 2.5, True)],
        ({"backend": "non_dist", "world_size": 3}, "3"),
        ({"backend": get_dist_backend("threads")}, "ThreadsDist"),
        ({"backend": 3}, "3"),
        ({"launcher": 3}, "3"),
        ({"timeout": "20"}, "'20'"),
        ({"timeout": None}, "None"),
        ({"timeout": -1}, "-1"),
        ({"timeout": float("inf")}, "inf"),
        ({"backend_timeout": 0}, "0"),
        ({"threads": 0}, "0"),
    ],
)
def test_an_argument_that_makes_no_world_is_refused_by_its_value(
    given: dict[str, Any], found: str
) -> None:
    with pytest.raises(UsageError, match=rf"(?<!\w){re.escape(found)}\b|{re.escape(found)}$"):
        World(**{"backend": "threads", "world_size": 2, **given})


def test_what_ranks_cannot_run_is_refused_before_it_is_sent() -> None:
    lock = threading.Lock()
    with World("threads", 3) as world:
        for words, *order in (
            ("None", None),
            ("'5'", gather, 1, 2, 3),
            ("2.*3", gather, 1, 2),
            (r"1.*3 ranks.*\* 3", gather, "same"),
            ("argument 1.*TypeError", gather, 1, lock, 2),
            ("function.*TypeError", lambda _: lock),
        ):
            timeout = {"timeout": "5"} if words == "'5'" else {}
            with pytest.raises(UsageError, match=words):
                world.run(*order, **timeout)
        assert world.run(gather, *["same"] * 3)[0] == (0, ["same"] * 3)


def test_ranks_leave_one_group_and_join_another(anywhere: str) -> None:
    with World(anywhere, 2) as world:
        pids = world.run(pid)
        world.leave()
        assert world.run(lambda backend: backend) == [None, None]
        with pytest.raises(WorldError) as caught:
            world.run(lambda _: Mean()([1.0]))
        assert isinstance(caught.value.common, UsageError)
        world.join(anywhere)
        assert world.run(gather, "a", "b")[1] == (1, ["a", "b"])
        assert world.run(pid) == pids


def test_a_closed_world_says_so() -> None:
    world = World("non_dist", 1)
    world.close()
    world.close()
    with pytest.raises(WorldError, match="closed"):
        world.run(pid)


@needs("mpi4py")
def test_a_backend_that_its_launcher_did_not_start_is_refused() -> None:
    # Started as plain processes, every MPI rank is alone in a world of one.
    with pytest.raises(UsageError) as caught:
        World("mpi4py", 2, launcher="local")
    assert "MPI4PyDist" in str(caught.value) and "rank 0 of 1" in str(caught.value)


@pytest.mark.parametrize(("backend", "more"), [("threads", 0), (SOCKETS, 0), (SOCKETS, 100_000)])
def test_more_ranks_than_open_files_are_refused_at_once_with_the_limit(
    backend: str, more: int
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/dev/fd").iterdir())) + 50
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        with pytest.raises(WorldError, match=r"open files.*`ulimit -n`"):
            World(backend, few + more)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_with_many_open_files_leads(anywhere: str) -> None:
    """`select.select` takes no descriptor above 1,023; the limit here may be lower."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(min(most, 1100))]
    try:
        with World(anywhere, 2) as world:
            assert world.run(gather, "a", "b") == [(0, ["a", "b"]), (1, ["a", "b"])]
    finally:
        for descriptor in opened:
            os.close(descriptor)


@needs("tf_horovod")
def test_horovodrun_starts_a_world() -> None:
    # `suites/docs` has a group of Horovod on such ranks, each of which imports TensorFlow for it.
    with World(None, 2, launcher="horovodrun") as world:
        pids = world.run(pid)
        assert world.run(lambda _: os.environ["HOROVOD_RANK"]) == ["0", "1"]
    assert left_over(pids) == []


def test_launchers_are_open_to_third_parties() -> None:
    class Polite(LocalLauncher):
        name = "polite"

        def environment(self) -> dict[str, str]:
            return {"PLEASE": "1"}

    register_launcher(Polite)
    with World("non_dist", 1, launcher="polite") as world:
        assert world.run(lambda backend: os.environ["PLEASE"]) == ["1"]
    with pytest.raises(UsageError, match="'local'"):
        register_launcher(type("Mine", (Polite,), {"name": "local"}))
    with pytest.raises(UsageError, match=r"'ssh'.*local"):
        World("non_dist", 1, launcher="ssh")


@pytest.mark.parametrize("launcher", [LocalLauncher(), ThreadsLauncher()])
def test_a_launcher_serves_one_world_after_another_but_not_two_at_once(launcher: Launcher) -> None:
    with World(None, 2, launcher=launcher) as first:
        for on_lost in ("fail", "continue"):
            with pytest.raises(UsageError, match="launcher"):
                World(None, 2, launcher=launcher, on_lost=on_lost)
        assert first.run(lambda _: "first") == ["first"] * 2
    with World(None, 2, launcher=launcher) as world:
        assert world.run(lambda _: "second") == ["second"] * 2


@pytest.mark.parametrize("launcher", ["local", "threads"])
def test_a_process_that_a_rank_has_forked_gives_no_reply(launcher: str) -> None:
    with World(None, 2, launcher=launcher) as world:
        world.run(lambda _: os.fork())
        for order in range(5):
            assert world.run(lambda _, value: value, order, order) == [order, order]


def test_a_fork_of_the_leader_does_not_lead() -> None:
    with World(None, 2, launcher="threads") as world:
        child = os.fork()
        if child == 0:
            refused = 1
            with suppress(BaseException), world:
                raise LookupError
            with suppress(BaseException):
                world.run(pid)
                refused = 0
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert world.run(lambda _: "still led") == ["still led"] * 2


def test_a_world_takes_one_order_at_a_time() -> None:
    refused = []

    def note(rank: int, value: str) -> None:
        with pytest.raises(UsageError, match=r"\bpid\b"):
            world.run(pid)
        refused.append(rank)

    with World(None, 2, launcher="threads") as world:
        assert world.run(send_two_notes, 0, 1, on_note=note) == ["done", "done"]
        assert sorted(refused) == [0, 0, 1, 1]
        assert world.run(lambda _: "next") == ["next", "next"]


def test_a_value_over_the_cap_is_an_error_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_messages(monkeypatch, 2 << 20)
    with World("threads", 2) as world:
        with pytest.raises(WorldError, match=r"3\d{6} bytes"):
            world.run(lambda backend: bytes(3 << 20))
        with pytest.raises(UsageError, match=r"3\d{6} bytes"):
            world.run(gather, bytes(3 << 20), 1)
        assert world.run(gather, 1, 2)[0] == (0, [1, 2])


@pytest.mark.parametrize("backend", each("torch_cpu", "mpi4py"))
def test_a_leader_imports_no_library_that_only_its_ranks_use(backend: str) -> None:
    code = """
import sys
from disteval.world import World
with World(sys.argv[1], 2) as world:
    gathered = world.run(lambda backend: backend.all_gather_object(backend.rank))
assert gathered == [[0, 1]] * 2, gathered
print(*{"torch", "mpi4py.MPI", "numpy"} & set(sys.modules))  # that of MPI would start it
"""
    command = [sys.executable, "-c", code, backend]
    printed = subprocess.check_output(command, text=True, timeout=120)
    assert printed.split() == ["numpy"]


class Forgetful(LocalLauncher):
    """Starts rank 0 alone."""

    name = "forgetful"

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        return super().commands(directory, 1)


def test_ranks_that_never_start_are_counted_and_named(anywhere: str) -> None:
    with shorter_start(0.5), pytest.raises(WorldError, match=r"^[01] of 30\b") as caught:
        World(anywhere, 30, launcher=Forgetful(), timeout=0.5)
    missing = str(caught.value).splitlines()[1]
    assert "all 30" in missing or re.search(r" 1, 2, .* 29\b", missing)


def rank_of_inner(backend: Any) -> tuple[int, int]:
    with World("threads", 2) as inner:
        return backend.rank, len(inner.run(pid))


def test_a_world_in_each_of_several_processes_is_refused_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "3")
    with pytest.raises(UsageError, match=r"\b3\b.* rank 1\b"):
        World("threads", 2)
    with World("threads", 2, launcher="threads") as world:
        # A function that starts a world was written to do so in each rank.
        assert world.run(rank_of_inner) == [(0, 2), (1, 2)]
    monkeypatch.setenv("PMI_SIZE", "x")
    with pytest.raises(UsageError, match=r"PMI_SIZE.*'x'"):
        World("threads", 2)

"""A world whose ranks may be lost: the others go on, and all that is left ends in bounded time."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError
from disteval.world import LocalLauncher, RankStatus, Results, World, report_progress

from suites.helpers.frames import Unloadable
from suites.helpers.processes import is_running, wait_for

SECONDS = 180.0
# In which a rank that works must return on a busy machine; one that hangs costs as long.
GRACE = 3.0
LOST = {  # how a rank is lost, and what is said of it
    "SIGKILL": "SIGKILL", "exit": "status 3", "exception": "ValueError", "SIGSTOP": "SIGSTOP",
    "hang": f"{GRACE:g} s",
}  # fmt: skip


def work(_: Any, how: str) -> tuple[str, int]:
    """Report this process, then be lost in the way that is named, or return."""
    report_progress(os.getpid(), None)
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "exit":
        os._exit(3)
    if how == "end":
        sys.exit()
    if how == "exception":
        raise ValueError("not this sample")
    if how == "hang":
        time.sleep(1000)
    return how, os.getpid()


def run(world: World, hows: list[str], wanted: int) -> tuple[Results, list[RankStatus], list[int]]:
    """Run `work`, until so many ranks have returned or been lost; return what came of it."""
    told: list[RankStatus] = []
    pids: dict[int, int] = {}
    begin = time.monotonic()

    def progress(rank: int, pid: int, _: int | None) -> None:
        pids[rank] = pid

    def until(_: Results) -> bool:
        return len(pids) >= wanted or time.monotonic() > begin + SECONDS

    found = world.run(
        work, *hows, until=until, on_lost=told.append, on_progress=progress, grace=GRACE
    )
    assert found.lost == told
    assert not world.is_open
    return found, told, list(pids.values())


def test_the_others_return_when_ranks_are_lost() -> None:
    hows = [*LOST, "fine"]
    found, told, pids = run(World(None, 6, launcher="local", on_lost="continue"), hows, wanted=6)
    assert (found.returned, found[:5], found[5][0]) == ({5}, [None] * 5, "fine")
    lost = {one.rank: one for one in told}
    for rank, how in enumerate(LOST):
        assert LOST[how] in lost.pop(rank).how
    assert lost == {}
    [hung] = [one for one in told if one.rank == 4]
    assert [call.function for call in hung.frames] == ["work"]
    assert [type(one.error) for one in told if one.error is not None] == [ValueError]
    assert not any(map(is_running, pids))


def outlive(_: Any, pid_of_first: Path) -> int:
    """Reply first and end a moment later, or wait for the rank that does."""
    try:
        with pid_of_first.open("x") as file:
            file.write(f"{os.getpid()}\n")
    except FileExistsError:
        assert wait_for(lambda: pid_of_first.read_text().endswith("\n"), SECONDS)
        assert wait_for(lambda: not is_running(int(pid_of_first.read_text())), SECONDS)
    else:
        threading.Timer(0.1, os._exit, [3]).start()
    return os.getpid()


def test_a_rank_that_ends_after_its_reply_is_lost_in_the_next_run(tmp_path: Path) -> None:
    with World(None, 2, launcher="local", on_lost="continue") as world:
        pids = world.run(outlive, *[tmp_path / "pid"] * 2)
        assert (pids.returned, pids.lost) == ({0, 1}, [])
        found = world.run(lambda _: os.getpid(), timeout=SECONDS)
        assert not world.is_open
    [lost] = found.lost
    assert lost.hello is not None and str(lost.hello.pid) == (tmp_path / "pid").read_text().strip()
    assert "status 3" in lost.how
    assert [found[rank] for rank in found.returned] == [pids[1 - lost.rank]]


def test_all_ranks_may_be_lost() -> None:
    world = World(None, 3, launcher="local", on_lost="continue")
    found, told, pids = run(world, ["SIGKILL"] * 3, wanted=4)
    assert (found, found.returned) == ([None] * 3, set())
    assert sorted(one.rank for one in told) == [0, 1, 2]
    assert not any(map(is_running, pids))


def test_a_value_that_the_leader_cannot_rebuild_loses_its_rank_alone() -> None:
    with World(None, 2, launcher="threads", on_lost="continue") as world:
        found = world.run(lambda _, bad: Unloadable() if bad else "fine", False, True)
    assert found == ["fine", None]
    assert [(lost.rank, "ValueError" in lost.how) for lost in found.lost] == [(1, True)]


def test_what_ranks_cannot_run_is_refused_before_it_is_sent() -> None:
    with World(None, 1, launcher="threads", on_lost="continue") as world:
        with pytest.raises(UsageError, match=r"\b3$"):
            world.run(3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"grace.*-1"):
            world.run(work, "fine", grace=-1)
        with pytest.raises(UsageError, match="backend"):
            world.join("threads")
        assert [world.run(work, "fine") == [("fine", os.getpid())] for _ in "12"] == [True, True]
    with pytest.raises(UsageError, match="'ignore'"):
        World(None, 1, launcher="threads", on_lost="ignore")  # type: ignore[arg-type]


def test_ranks_of_a_group_may_be_lost_too() -> None:
    with World("non_dist", 1, on_lost="continue") as world:
        assert world.run(lambda backend: backend.world_size) == [1]
        assert world.is_open
    told: list[RankStatus] = []
    with World("threads", 3) as world:
        found = world.run(lambda backend: 6 // (2 - backend.rank), on_lost=told.append)
        assert not world.is_open
    assert found == [3, 6, None]
    assert (found.lost, [type(one.error) for one in told]) == (told, [ZeroDivisionError])


def test_a_run_that_nobody_ends_ends_when_ranks_are_silent() -> None:
    with World(None, 2, launcher="local", on_lost="continue") as world:
        found = world.run(work, "fine", "hang", timeout=5, grace=0.1)
    assert found.returned == {0}
    assert [one.rank for one in found.lost] == [1]
    assert [call.function for call in found.lost[0].frames] == ["work"]


@pytest.mark.filterwarnings("ignore:Exception in thread")
def test_threads_may_end_and_raise() -> None:
    world = World(None, 3, launcher="threads", on_lost="continue")
    found, told, _ = run(world, ["end", "fine", "exception"], wanted=4)
    assert found.returned == {1}
    hows = {one.rank: one.how for one in told}
    assert (len(told), "thread" in hows[0], "ValueError" in hows[2]) == (2, True, True)


class Stillborn(LocalLauncher):
    """Starts ranks of which some are other programs, which end at once or never report."""

    def __init__(self, programs: dict[int, str]) -> None:
        super().__init__()
        self._programs = programs

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        found = super().commands(directory, world_size)
        for rank, code in self._programs.items():
            found[rank] = [sys.executable, "-S", "-c", code]
        return found


def test_ranks_that_never_report_keep_nobody_waiting() -> None:
    launcher = Stillborn({1: "raise SystemExit(5)", 2: "import time; time.sleep(1000)"})
    done: list[int] = []
    world = World(None, 3, launcher=launcher, on_lost="continue")

    def until(found: Results) -> bool:
        return bool(done and launcher.how_ended(1) and found.lost)

    told: list[RankStatus] = []
    found = world.run(
        work, *["fine"] * 3, until=until, on_lost=told.append,
        on_progress=lambda rank, *_: done.append(rank),
    )  # fmt: skip
    assert done == [0]
    assert found.returned == {0}
    assert [one.rank for one in told] == [1, 2]
    assert "status 5" in told[0].how and "status" not in told[1].how
    assert wait_for(lambda: launcher.how_ended(2), SECONDS)


class Outer(LocalLauncher):
    """Starts ranks as somebody else does, the last of them when a file is there."""

    attached = True

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def commands(self, directory: Path, world_size: int) -> list[list[str]]:
        *found, last = super().commands(directory, world_size)
        wait = 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
        return [*found, ["sh", "-c", wait, str(self._file), *last]]


def test_a_rank_of_somebody_else_that_comes_at_the_end_need_not_look_for_its_leader(
    tmp_path: Path,
) -> None:
    done: list[int] = []

    def until(_: Results) -> bool:
        if done:
            (tmp_path / "go").touch()
        return bool(done)

    world = World(None, 2, launcher=Outer(tmp_path / "go"), on_lost="continue")
    found = world.run(
        work, *["fine"] * 2, until=until, on_progress=lambda *told: done.append(told[0]),
        grace=SECONDS,
    )  # fmt: skip
    assert found.returned == {0, 1}
    assert found.lost == []
    world.close()

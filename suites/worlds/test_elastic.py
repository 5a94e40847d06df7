"""A world whose ranks may be lost: the others go on, and all that is left ends in bounded time."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError
from disteval.world import ElasticWorld, LocalLauncher, LostRank, report_progress

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


def run(world: ElasticWorld, hows: list[str], wanted: int) -> tuple[Any, list[LostRank], list[int]]:
    """Run `work`, until so many ranks have returned or been lost; return what came of it."""
    told: list[LostRank] = []
    pids: dict[int, int] = {}
    begin = time.monotonic()

    def progress(rank: int, pid: int, _: int | None) -> None:
        pids[rank] = pid

    def going_on() -> bool:
        return len(pids) < wanted and time.monotonic() < begin + SECONDS

    found = world.run(
        work, *hows, going_on=going_on, on_lost=told.append, on_progress=progress, grace=GRACE
    )
    assert found.lost == told
    assert not world.is_open
    return found, told, list(pids.values())


def test_the_others_return_when_ranks_are_lost() -> None:
    hows = [*LOST, "fine"]
    found, told, pids = run(ElasticWorld(6, "local"), hows, wanted=6)
    assert {rank: value for rank, (value, _) in found.values.items()} == {5: "fine"}
    lost = {one.rank: one for one in told}
    for rank, how in enumerate(LOST):
        assert LOST[how] in lost.pop(rank).how
    assert lost == {}
    assert "in work" in next(one.report for one in told if one.rank == 4)
    assert [type(one.error) for one in told if one.error is not None] == [ValueError]
    assert not any(map(is_running, pids))


def test_all_ranks_may_be_lost() -> None:
    found, told, pids = run(ElasticWorld(3, "local"), ["SIGKILL"] * 3, wanted=4)
    assert found.values == {}
    assert sorted(one.rank for one in told) == [0, 1, 2]
    assert not any(map(is_running, pids))


def test_a_value_that_the_leader_cannot_rebuild_loses_its_rank_alone() -> None:
    with ElasticWorld(2, "threads") as world:
        found = world.run(lambda _, bad: Unloadable() if bad else "fine", False, True)
    assert found.values == {0: "fine"}
    assert [(lost.rank, "ValueError" in lost.how) for lost in found.lost] == [(1, True)]


def test_what_ranks_cannot_run_is_refused_before_it_is_sent() -> None:
    with ElasticWorld(1, "threads") as world:
        with pytest.raises(UsageError, match=r"\b3$"):
            world.run(3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"grace.*-1"):
            world.run(work, "fine", grace=-1)
        assert [*world.run(work, "fine").values] == [0]


@pytest.mark.filterwarnings("ignore:Exception in thread")
def test_threads_may_end_and_raise() -> None:
    found, told, _ = run(ElasticWorld(3, "threads"), ["end", "fine", "exception"], wanted=4)
    assert sorted(found.values) == [1]
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
    world = ElasticWorld(3, launcher)

    def going_on() -> bool:
        return not (done and launcher.ended().get(1)) or len(told) < 1

    told: list[LostRank] = []
    found = world.run(
        work, *["fine"] * 3, going_on=going_on, on_lost=told.append,
        on_progress=lambda rank, *_: done.append(rank),
    )  # fmt: skip
    assert done == [0]
    assert sorted(found.values) == [0]
    assert [one.rank for one in told] == [1, 2]
    assert "status 5" in told[0].how and "status" not in told[1].how
    assert wait_for(lambda: 2 in launcher.ended(), SECONDS)


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

    def going_on() -> bool:
        if done:
            (tmp_path / "go").touch()
        return not done

    world = ElasticWorld(2, Outer(tmp_path / "go"))
    found = world.run(
        work, *["fine"] * 2, going_on=going_on, on_progress=lambda *told: done.append(told[0]),
        grace=SECONDS,
    )  # fmt: skip
    assert sorted(found.values) == [0, 1]
    assert found.lost == []

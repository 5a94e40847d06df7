"""A rank is a process as any other, however its launcher has made it."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import disteval
import numpy as np
import pytest
from disteval import WorldError
from disteval.world import LocalLauncher, World

HOW = {"forked": True, "started": False}


def is_as_its_parent(_: Any) -> bool:
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (os.getpid(), os.getppid())]
    return commands[0] == commands[1]


def is_forked(world: World) -> bool:
    """Return whether ranks are forks of their parent, whose command is theirs."""
    return all(world.run(is_as_its_parent))


def what_a_process_is(_: Any) -> dict[str, Any]:
    return {
        "variables": dict(os.environ),
        "set": os.environ.get("DISTEVAL_SET_LATER"),
        "path": sys.path,
        "folder": str(Path.cwd()),
        "arguments": [sys.argv[0], *sys.argv[2:]],
        "name": Path("/proc/self/comm").read_text(),
        "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
        "streams": [Path(f"/proc/self/fd/{n}").readlink().name for n in range(3)],
        "open": len(list(Path("/proc/self/fd").iterdir())),
        "caught": [signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)],
        "modules": set(sys.modules),
        "mask": os.umask(0),
    }


def test_a_forked_rank_is_as_one_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(None, 1, launcher=LocalLauncher()) as world:
        assert is_forked(world)
    monkeypatch.setenv("DISTEVAL_SET_LATER", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = os.umask(0o027)
    try:
        with (
            World(None, 1, launcher=LocalLauncher()) as world,
            World(None, 1, launcher=LocalLauncher(forks=False)) as other,
        ):
            [found], [expected] = world.run(what_a_process_is), other.run(what_a_process_is)
    finally:
        os.umask(before)
    assert found == expected
    assert (found["set"], found["mask"]) == ("1", 0o027)


def draw(_: Any) -> tuple[int, float, bytes]:
    return hash("the same string"), float(np.random.random()), os.urandom(4)


def test_ranks_draw_different_numbers() -> None:
    with World(None, 3, launcher=LocalLauncher()) as world:
        assert is_forked(world)
        hashes, numbers, unique = zip(*world.run(draw), strict=True)
    assert len({*hashes}) > 1  # neighbours were not forked off one process
    assert len({*numbers}) == len({*unique}) == 3


def test_what_is_set_between_two_worlds_holds_in_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "made later"
    monkeypatch.syspath_prepend(str(later))  # which keeps the path that is restored at the end
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    World(None, 1, launcher="local").close()
    later.mkdir()
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "of_a_user.py").write_text(f"place = {place!r}")
        monkeypatch.syspath_prepend(str(tmp_path / place))
        with World(None, 1, launcher=LocalLauncher(preload=["of_a_user"])) as world:
            assert is_forked(world)
            assert world.run(lambda _: __import__("of_a_user").place) == [place]
    (later / "of_a_later_folder.py").write_text("")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    with World(None, 2, launcher="local") as world:
        assert world.run(lambda _: __import__("of_a_later_folder").__name__)
        environments = world.run(lambda _: Path("/proc/self/environ").read_bytes())
        assert all(b"OMP_NUM_THREADS=7" in found for found in environments)
        assert len({one for one, *_ in world.run(draw)}) == 1


def test_no_rank_is_forked_off_a_library_that_has_started_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, pathlib, threading as t\nt.Thread(target=t.Event().wait).start()\n"
    code += f"pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\n"
    (tmp_path / "starts_a_thread.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(2):
        with World(None, 2, launcher=LocalLauncher(preload=["starts_a_thread"])) as world:
            assert not any(world.run(is_as_its_parent))
    servers = [entry.name for entry in tmp_path.iterdir() if entry.name.isdecimal()]
    assert len(servers) == 2  # the second world has tried no others
    assert not any(Path("/proc", pid).exists() for pid in servers)


def test_ranks_run_their_leaders_library_whatever_a_file_of_the_users_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "disteval.py").write_text("raise SystemExit('this is not the library')\n")
    (tmp_path / "mine.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    with World("non_dist", 1) as world:
        files = world.run(lambda _: [import_module(n).__file__ for n in ("mine", "disteval")])
    assert files == [[str(tmp_path / "mine.py"), disteval.__file__]]


@pytest.mark.skipif(
    (3, 13) <= sys.version_info < (3, 13, 3),
    reason="python 3.13.3 is needed, before which 3.13 can't import numpy in such a folder",
)
def test_ranks_are_started_in_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with World(None, 2, launcher="local") as world:
        assert world.run(lambda _, rank: rank, 0, 1) == [0, 1]


def leave(_: Any, place: tuple[int, str, str]) -> None:
    """End rank 1 in the way that is named, with a file that is not written yet."""
    global left  # as a variable of a module is what the interpreter ends with
    rank, folder, how = place
    if rank == 0:
        threading.Event().wait()
    left = (Path(folder) / "written").open("w")
    left.write("text")
    if how == "KeyboardInterrupt":
        raise KeyboardInterrupt
    sys.exit(int(how) if how.isdecimal() else how)


@pytest.mark.parametrize(
    ("how", "end", "started"),
    [
        ("3", "status 3", "forked"),
        ("some text", "status 1", "forked"),
        ("KeyboardInterrupt", "SIGINT", "forked"),
        ("KeyboardInterrupt", "SIGINT", "started"),
    ],
)
def test_a_rank_ends_as_a_process_does(how: str, end: str, started: str, tmp_path: Path) -> None:
    with (
        World(None, 2, launcher=LocalLauncher(forks=HOW[started])) as world,
        pytest.raises(WorldError) as caught,
    ):
        world.run(leave, *[(rank, str(tmp_path), how) for rank in range(2)])
    assert caught.value.lost == (1,)
    assert end in str(caught.value)
    assert how.isdecimal() or how in str(caught.value)
    assert (tmp_path / "written").read_text() == "text"


def leave_a_thread_that_writes(_: Any, folder: str) -> None:
    """Leave a thread that waits to write, and a file that is not written yet."""
    global left, pipe
    pipe = [os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]
    threading.Thread(target=pipe[1].write, args=[bytes(1 << 20)], daemon=True).start()
    left = (Path(folder) / "written").open("w")
    left.write("text")
    pipe[0].read(1)  # the thread is writing


def test_a_thread_that_waits_to_write_keeps_no_rank_from_ending(tmp_path: Path) -> None:
    with World(None, 1, launcher=LocalLauncher()) as world:
        world.run(leave_a_thread_that_writes, str(tmp_path))
    assert (tmp_path / "written").read_text() == "text"


def test_worlds_may_be_started_and_ended_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own directory, which no other takes for one that a dead leader left."""
    monkeypatch.setenv("DISTEVAL_CONTROL_DIR", str(tmp_path))

    def live(number: int) -> list[list[int]]:
        found = []
        for backend in ("threads", None) * 3:
            launcher = "threads" if backend else "local"
            with World(backend, 2, launcher=launcher) as world:
                found.append(world.run(lambda _, value: value, number, number))
        return found

    with World(None, 1, launcher="local") as first, ThreadPoolExecutor(4) as pool:
        assert [*pool.map(live, range(4))] == [[[number] * 2] * 6 for number in range(4)]
        assert first.run(lambda _: "there") == ["there"]
    assert list(tmp_path.iterdir()) == []
